"""Keys and values of finished blocks are kept for good."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, WriteThreshold
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="freecache",
    title="FreeCache",
    aliases=("flashdlm",),
    arxiv="2505.21467",
    summary="Feeds the block and what lies behind it; the prompt and finished blocks keep their keys and values for good.",
    kind="refresh",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Hu et al., FlashDLM: accelerating diffusion language model inference via FreeCache and guided diffusion, 2025",
    reduces_to="fast-dllm without a cache for every = 1",
    parent="llada",
    home="long prompts",
    published="up to 34 times end to end, together with a guide",
)
PUBLISHED = PublishedPreset(
    {
        "delay": PublishedValue(
            False,
            "a finished block is kept as its last pass saw it, with gaps; ours is fed once more before",
        )
    }
)


def build(
    kit: Kit,
    *,
    threshold: WriteThreshold = 2.0,
    delay: Annotated[
        bool, "feed what a block's last pass wrote once more before it is kept"
    ] = True,
    every: Annotated[
        int, AtLeast(0), "passes of a block after which everything is fed again (0: never)"
    ] = 0,
    block: BlockLength = 32,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes.frozen import FrozenRefresh
    from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker

    # Only with every = 1 is everything fed in each pass, and nothing stale is read.
    return DenoisingDecoder(
        kit.denoiser,
        ThresholdUnmasker(threshold),
        FrozenRefresh(delay, every),
        block,
        kit.shapers,
        every == 1,
    )
