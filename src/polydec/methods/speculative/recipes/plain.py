"""Plain decoding."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

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
PUBLISHED = PublishedPreset(
    refused="it is what papers compare with, and none of them sets anything"
)


def build(kit: Kit) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.nothing import NothingDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # The loop with nothing to verify: one token a pass, drawn as `match` draws it.
    return SpeculativeDecoder(kit.target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))
