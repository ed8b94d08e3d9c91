"""Every clear gap at once, on a model that was trained to be sure."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="dparallel",
    title="dParallel",
    arxiv="2509.26488",
    summary="Fills every gap whose law has little entropy; for models that `polydec train dparallel` made surer.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Chen et al., dParallel: learnable parallel decoding for dLLMs, 2025",
    reduces_to="dream for threshold = 0 unless laws have no entropy",
    parent="fast-dllm",
    home="models that were trained for it",
    published="8.5 times one token a pass on GSM8K, 75.7 to 76.1 % right (LLaDA-8B-Instruct, without a "
    "cache); 5.7 to 10.5 times over four benchmarks",
)
PUBLISHED = PublishedPreset(
    unknown="0.45 nats are Dream's and 0.5 LLaDA's; the published training is `polydec train dparallel --lora 128 "
    "--block 32 --half`"
)


def build(
    kit: Kit,
    *,
    threshold: Annotated[
        float, AtLeast(0), "nats: gaps of at most this entropy are written at once"
    ] = 0.45,
    cache: CacheLevel = 0,
    block: BlockLength = 32,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.entropy_threshold import EntropyThresholdUnmasker

    # Keys and values that a cache keeps are stale: the laws are the model's only without one.
    return DenoisingDecoder(
        kit.denoiser,
        EntropyThresholdUnmasker(threshold),
        refresh_for_cache(kit.denoiser.block, cache),
        block,
        kit.shapers,
        not cache,
    )
