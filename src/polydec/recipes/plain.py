"""Plain decoding."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.nothing import Nothing
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="plain",
    title="Plain decoding",
    summary="One token a pass, drawn from the target's law: what every other method is measured against.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="the definition of an autoregressive law",
    reduces_to="itself",
)


def build(target: Target, *, draft: Target | None = None) -> Speculative:
    return Speculative(target, Nothing(), Match(), Fixed(0))
