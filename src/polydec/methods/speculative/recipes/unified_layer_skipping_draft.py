"""Unified Layer Skipping as a draft."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="unified-layer-skipping-draft",
    title="Unified Layer Skipping, verified by the whole model",
    summary="An evenly spaced share of the layers drafts over the target's cache, and all of them verify.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Liu et al., Accelerating inference in large language models with a unified layer skipping strategy, 2024; "
    "verified as in Zhang et al., Draft & verify, 2023",
    reduces_to="plain at depth 0",
    parent="plain",
    home="models tuned with the same pattern",
    needs=(LAYERS,),
)
PUBLISHED = PublishedPreset(refused="the paper verifies nothing: that this model drafts is ours")


def build(
    kit: Kit,
    *,
    speed: Annotated[
        float, AtLeast(1), "layers of the model for each one that drafts (at least two draft)"
    ] = 2.0,
    depth: Annotated[int, InRange(0, 64), "tokens of a draft"] = 4,
    even: Annotated[bool, "as evenly spaced as can be (false: the published rule)"] = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.economics.depth import kept_layers
    from polydec.methods.speculative.drafters.self_speculative import SelfSpeculativeDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # The same layers as the unverified method, here only as a draft.
    layers = kept_layers(kit.target.layers, speed, even=even)
    return SpeculativeDecoder(
        kit.target, SelfSpeculativeDrafter(ChainTree(), layers), ExactVerifier(), FixedPolicy(depth)
    )
