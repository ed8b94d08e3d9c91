"""Entropy order."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, BlockPasses, CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="dream",
    title="Entropy order",
    aliases=("entropy-order", "lowest-entropy"),
    arxiv="2508.15487",
    summary="Fills a fixed number of gaps a pass, those whose law has the lowest entropy.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Ye et al., Dream 7B: diffusion large language models, 2025 (entropy before temperature, an even quota)",
    reduces_to="left-to-right for block = 1",
    parent="mdlm",
    home="any text of a masked-diffusion model",
)
PUBLISHED = PublishedPreset(
    unknown="a temperature of 0.2 and top-p 0.95 are the request's; its own schedule fills no gap in "
    "the first pass and two in the last, ours one in each"
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
    from polydec.methods.diffusion.unmaskers.entropy import EntropyUnmasker

    # Keys and values that a cache keeps are stale: the laws are the model's only without one.
    return DenoisingDecoder(
        kit.denoiser,
        EntropyUnmasker(steps),
        refresh_for_cache(kit.denoiser.block, cache),
        block,
        kit.shapers,
        not cache,
    )
