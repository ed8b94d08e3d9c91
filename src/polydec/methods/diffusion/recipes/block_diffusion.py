"""Block by block, with the blocks that stand kept exactly."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import WriteThreshold
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import BLOCKS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="block-diffusion",
    title="Block diffusion",
    aliases=("bd3-lm", "sdar"),
    arxiv="2503.09573",
    summary="Fills a block-causal model's blocks one after the other; finished ones keep their keys and values, exactly.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Arriola et al., Block diffusion, 2025; Cheng et al., SDAR, 2025",
    reduces_to="left-to-right for a model whose blocks have one position",
    parent="llada",
    home="block-causal models, long texts",
    needs=(BLOCKS,),
    published="over 2 times the speed of a fixed number of passes, with negligible loss of accuracy (SDAR)",
)
PUBLISHED = PublishedPreset(
    unknown="SDAR's script has a threshold of 0.85 and engines have 0.9; the first paper's own "
    "sampler, one gap a pass in random order, is `mdlm`"
)


def build(
    kit: Kit,
    *,
    threshold: WriteThreshold = 0.9,
    block: Annotated[
        int,
        AtLeast(0),
        "positions of a part of the model's block that is filled first (0: all of it)",
    ] = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes.blockwise import BlockwiseRefresh
    from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker

    # Finished blocks see nothing that comes later: their keys and values are kept exactly.
    return DenoisingDecoder(
        kit.denoiser,
        ThresholdUnmasker(threshold),
        BlockwiseRefresh(kit.denoiser.block),
        block,
        kit.shapers,
    )
