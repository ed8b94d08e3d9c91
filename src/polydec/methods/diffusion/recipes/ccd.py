"""Tokens that agree over several passes."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="ccd",
    title="Coherent contextual decoding",
    aliases=("coherent-contextual-decoding", "ccd-ds"),
    summary="Fills the gaps whose laws were clear in the last passes too, on average: sure tokens that no new context moved.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Chen et al., Beyond confidence: adaptive and coherent decoding for diffusion language models, 2025",
    reduces_to="dream for depth = 1 (of the same `steps`; llada without chance where `likely`)",
    parent="dream",
    home="answers whose parts hang on each other",
    published="up to 3.48 times, and 3.91 points more accuracy",
)
PUBLISHED = PublishedPreset(
    {
        "block": PublishedValue(
            0, "Dream's whole canvas is one block there; ours has LLaDA's blocks of 32"
        )
    },
    unknown="its bound on the mean law's entropy has no value (slack and most are ours), and its depth is 3 for "
    "Dream and 2 for LLaDA",
)


def build(
    kit: Kit,
    *,
    depth: Annotated[int, AtLeast(1), "passes that are averaged"] = 3,
    width: Annotated[int, AtLeast(1), "gaps of lowest entropy that are looked at"] = 4,
    slack: Annotated[
        float, AtLeast(0), "nats that the entropy of a mean law may lie above the least"
    ] = 0.1,
    most: Annotated[
        float, AtLeast(0), "nats that the entropy of a mean law may have at most (without a budget)"
    ] = 0.5,
    count: Annotated[
        int, AtLeast(0), "a fixed budget: tokens of every pass (0: as many as agree)"
    ] = 0,
    steps: Annotated[
        int,
        AtLeast(0),
        "the budget of a schedule that gives a block so many passes, as dream and llada have it (0: not)",
    ] = 0,
    likely: Annotated[
        bool, "rank gaps by their likeliest token, as llada does, and not by entropy, as dream does"
    ] = False,
    agree: Annotated[
        bool, "compare the likeliest tokens of two passes instead, as released (width: at most)"
    ] = False,
    cache: CacheLevel = 0,
    block: BlockLength = 32,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.agreement import AgreementUnmasker
    from polydec.methods.diffusion.unmaskers.coherent import (
        CoherentUnmasker,
        by_entropy,
        by_probability,
    )

    # `agree` is the released rule: with the default width it compares five gaps at most. Keys and
    # values that a cache keeps are stale: the laws are the model's only without one.
    return DenoisingDecoder(
        kit.denoiser,
        AgreementUnmasker(most=width + 1, count=count)
        if agree
        else CoherentUnmasker(
            depth, width, slack, most, count, steps, by_probability if likely else by_entropy
        ),
        refresh_for_cache(kit.denoiser.block, cache),
        block,
        kit.shapers,
        not cache,
    )
