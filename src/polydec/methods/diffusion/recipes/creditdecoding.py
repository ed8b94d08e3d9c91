"""Trace credits."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="creditdecoding",
    title="CreditDecoding",
    aliases=("trace-credit", "credit"),
    arxiv="2510.06133",
    summary="As fast-dllm, and a token that stays the likeliest from pass to pass needs less confidence each time.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Wang et al., CreditDecoding: accelerating parallel decoding by trace credits, 2025",
    reduces_to="fast-dllm for alpha = 0",
    parent="fast-dllm",
    home="text whose tokens are found long before the model is sure of them",
    published="5.48 times one token a pass, with 0.48 points more (LLaDA-8B-Instruct, eight benchmarks)",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    threshold: Annotated[
        float, InRange(0, 2), "confidence, credit counted in, from which a token is written at once"
    ] = 0.9,
    alpha: Annotated[float, InRange(0, 16), "weight of the credits' logarithm in the logits"] = 0.7,
    gamma: Annotated[
        float, InRange(0, 16), "power of a likeliest token's probability that is its gain"
    ] = 0.2,
    beta: Annotated[float, InRange(0, 1), "share of the credits that the next pass keeps"] = 0.8,
    block: BlockLength = 32,
    cache: CacheLevel = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.credit import CreditUnmasker

    refresh = refresh_for_cache(kit.denoiser.block, cache)
    # Keys and values that a cache keeps are stale: the laws are the model's only without one.
    return DenoisingDecoder(
        kit.denoiser,
        CreditUnmasker(threshold, alpha, gamma, beta),
        refresh,
        block,
        kit.shapers,
        not cache,
    )
