"""Plain decoding."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.card import Card
from polydec.methods.kit import Kit

CARD = Card(
    name="plain",
    title="Plain decoding",
    summary="One token a pass, drawn from the target's law: what every other method is measured against.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="the definition of an autoregressive law",
    reduces_to="itself",
    aliases=("autoregressive", "greedy", "sampling", "vanilla"),
    unexercised=dict.fromkeys(
        ("drafted", "accepted", "rejected"), "plain decoding writes each token by itself"
    ),
)


def build(kit: Kit) -> Decoder:
    from polydec.drafters.nothing import Nothing
    from polydec.families.ar.speculative import Speculative
    from polydec.policies.fixed import Fixed
    from polydec.verifiers.match import Match

    return Speculative(kit.target, Nothing(), Match(), Fixed(0))
