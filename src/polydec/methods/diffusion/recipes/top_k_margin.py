"""Margin order."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, BlockPasses, CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="top-k-margin",
    title="Margin order",
    aliases=("top-probability-margin", "margin-order"),
    arxiv="2502.06768",
    summary="Fills a fixed number of gaps a pass, those whose best token lies farthest above the second.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Kim et al., Train for the worst, plan for the best: token ordering in masked diffusions, 2025",
    reduces_to="left-to-right for block = 1",
    parent="mdlm",
    home="puzzles, where some gaps follow from what stands",
)
PUBLISHED = PublishedPreset(
    unknown="whether its margins have noise for other tasks than puzzles could not be read"
)


def build(
    kit: Kit,
    *,
    block: BlockLength = 0,
    steps: BlockPasses = 0,
    cache: CacheLevel = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.margin import MarginUnmasker

    # Keys and values that a cache keeps are stale: the laws are the model's only without one.
    return DenoisingDecoder(
        kit.denoiser,
        MarginUnmasker(steps),
        refresh_for_cache(kit.denoiser.block, cache),
        block,
        kit.shapers,
        not cache,
    )
