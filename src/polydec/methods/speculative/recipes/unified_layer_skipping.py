"""Unified Layer Skipping, alone."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="unified-layer-skipping",
    title="Unified Layer Skipping",
    summary="The prompt passes every layer, each generated token the same evenly spaced share of them.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Liu et al., Accelerating inference in large language models with a unified layer skipping strategy, 2024",
    reduces_to="plain at speed 1",
    parent="plain",
    home="models tuned with the same pattern, and a fixed speed to reach",
    needs=(LAYERS,),
    arxiv="2404.06954",
    unexercised=dict.fromkeys(
        ("drafted", "accepted", "rejected"), "the layers that a token leaves out draft nothing"
    ),
)
PUBLISHED = PublishedPreset(
    {
        "even": PublishedValue(
            False,
            "the published spacing, which leaves out the layers just below the last; even spacing is far better without tuning",
        ),
    },
    unknown="speeds of 2, 3, 5 and 10 are measured: speed stays ours",
)


def build(
    kit: Kit,
    *,
    speed: Annotated[
        float, AtLeast(1), "layers of the model for each one that runs (at least two run)"
    ] = 1.3,
    even: Annotated[bool, "as evenly spaced as can be (false: the published rule)"] = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.laws.targets.skipping import SkippingTarget
    from polydec.methods.economics.depth import kept_layers
    from polydec.methods.speculative.drafters.nothing import NothingDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # Without verification the shallow network's law is the one that is decoded: approximate.
    law = SkippingTarget(kit.target, kept_layers(kit.target.layers, speed, even=even))
    return SpeculativeDecoder(
        law, NothingDrafter(), MatchVerifier(), FixedPolicy(0), Exactness.APPROXIMATE
    )
