"""Remasking of unsure tokens."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, BlockPasses, CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="remdm",
    title="Remasking of unsure tokens",
    aliases=("remasking",),
    arxiv="2503.00307",
    summary="Fills the surest gaps, then takes the least sure tokens back and fills as many gaps anew.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Wang et al., Remasking discrete diffusion models with inference-time scaling (ReMDM), 2025, as ParallelBench "
    "(Kang et al., 2025) measures it",
    reduces_to="llada for again = 0",
    parent="llada",
    home="several tokens a pass, where their order within a block can wait",
)
PUBLISHED = PublishedPreset(
    refused="tokens are taken back by chance there, by schedules that are not built; here the least "
    "sure ones are, as ParallelBench does"
)


def build(
    kit: Kit,
    *,
    block: BlockLength = 32,
    steps: BlockPasses = 0,
    again: Annotated[
        int, InRange(0, 1024), "further passes of a block, which take tokens back"
    ] = 2,
    count: Annotated[int, AtLeast(1), "tokens that such a pass takes back, and gaps it fills"] = 1,
    late: Annotated[
        float, InRange(0, 1), "share of a block's passes behind which they come"
    ] = 0.875,
    cache: CacheLevel = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.remasking import RemaskingDenoising
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker

    rule = refresh_for_cache(kit.denoiser.block, cache)
    base = DenoisingDecoder(
        kit.denoiser, ConfidenceUnmasker(steps), rule, block, kit.shapers, not cache
    )
    # `steps` once more: `late` is a share of the passes that the schedule gives a block.
    return RemaskingDenoising(base, again, count, late, steps)
