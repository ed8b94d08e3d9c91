"""Keys and values that are kept one pass late."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, WriteThreshold
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="dkv-cache",
    title="dKV-Cache-Decode",
    aliases=("dkv-cache-decode",),
    arxiv="2505.15781",
    summary="Feeds only gaps and what was written last; a token's keys and values are kept from the pass after it was written.",
    kind="refresh",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Ma et al., dKV-Cache: the cache for diffusion language models, 2025",
    reduces_to="fast-dllm without a cache for every = 1 where the prompt is not kept",
    parent="llada",
    home="long answers, of which much stands already",
    published="1.83 to 2.42 times without a cache (LLaDA-8B-Instruct, six benchmarks)",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    threshold: WriteThreshold = 2.0,
    every: Annotated[int, AtLeast(1), "passes of a block after which everything is fed again"] = 8,
    prompt: Annotated[
        bool,
        "feed the prompt once and keep it for good: dKV-Cache-PD, and with every=1 its Prefill",
    ] = False,
    block: BlockLength = 32,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes.delayed import DelayedRefresh
    from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker

    # With every = 1 each pass feeds all positions, so nothing stale is read, unless the prompt is
    # kept.
    return DenoisingDecoder(
        kit.denoiser,
        ThresholdUnmasker(threshold),
        DelayedRefresh(every),
        block,
        kit.shapers,
        every == 1 and not prompt,
        prompt_kept=prompt,
    )
