"""Unified Layer Skipping, alone."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.nothing import Nothing
from polydec.models.depth import kept_layers
from polydec.policies.fixed import Fixed
from polydec.targets.skipping import Skipping
from polydec.verifiers.match import Match

CARD = Card(
    name="unified-layer-skipping",
    title="Unified Layer Skipping",
    summary="The prompt passes every layer, each generated token the same evenly spaced share of them.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.APPROXIMATE,
    source="Liu et al., Accelerating inference in large language models with a unified layer skipping strategy, 2024",
    reduces_to="plain at speed 1",
    parent="plain", home="models tuned with the same pattern, and a fixed speed to reach",
    needs=("layers",),
    options={"speed": "layers of the model for each one that runs, 1 and more (at least two run)",
             "even": "as evenly spaced as can be (false: the published rule)"},
)


def build(target: Target, *, draft: Target | None = None, speed: float = 1.3, even: bool = True) -> Speculative:
    law = Skipping(target, kept_layers(target.layers, speed, even=even))
    return Speculative(law, Nothing(), Match(), Fixed(0), Exactness.APPROXIMATE)
