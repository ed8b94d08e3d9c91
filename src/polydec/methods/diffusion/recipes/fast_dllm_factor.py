"""Confidence-aware parallel decoding by the count of tokens."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="fast-dllm-factor",
    title="Fast-dLLM: factor",
    aliases=("confidence-factor",),
    summary="Fills as many gaps of the block as are likely right together: the more, the surer each must be.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Wu et al., Fast-dLLM: training-free acceleration by KV cache and parallel decoding, 2025",
    reduces_to="llada for factor = 0",
    parent="fast-dllm",
    home="text whose gaps hang on each other in some places",
)
PUBLISHED = PublishedPreset(
    {
        "cache": PublishedValue(
            2,
            "its dual cache: keys and values before and behind the block are kept; ours feeds everything, which is exact",
        ),
    }
)


def build(
    kit: Kit,
    *,
    factor: Annotated[
        float,
        InRange(0, 64),
        "how much is risked; 1: a greedy pass writes the likeliest tokens together",
    ] = 1.0,
    block: BlockLength = 32,
    cache: CacheLevel = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.factor import FactorUnmasker

    # Keys and values that a cache keeps are stale: the laws are the model's only without one.
    return DenoisingDecoder(
        kit.denoiser,
        FactorUnmasker(factor),
        refresh_for_cache(kit.denoiser.block, cache),
        block,
        kit.shapers,
        not cache,
    )
