"""Unified Layer Skipping as a draft."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.self_speculative import SelfSpeculative
from polydec.models.depth import kept_layers
from polydec.policies.fixed import Fixed
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="unified-layer-skipping-draft",
    title="Unified Layer Skipping, verified by the whole model",
    summary="An evenly spaced share of the layers drafts over the target's cache, and all of them verify.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Liu et al., Accelerating inference in large language models with a unified layer skipping strategy, 2024; "
           "verified as in Zhang et al., Draft & verify, 2023",
    reduces_to="plain at depth 0",
    parent="plain", home="models tuned with the same pattern",
    needs=("layers",),
    options={"speed": "layers of the model for each one that drafts, 1 and more (at least two draft)",
             "depth": "tokens of a draft, 0 to 64", "even": "as evenly spaced as can be (false: the published rule)"},
)


def build(target: Target, *, draft: Target | None = None, speed: float = 2.0, depth: int = 4,
          even: bool = True) -> Speculative:
    layers = kept_layers(target.layers, speed, even=even)
    return Speculative(target, SelfSpeculative(Chain(), layers), Exact(), Fixed(depth))
