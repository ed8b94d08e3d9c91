"""An autoregressive model decides how much of a draft stands."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="guided-diffusion",
    title="Guided diffusion",
    aliases=("flashdlm-guided",),
    summary="A small autoregressive model reads what a pass drafts, and as much is written, from the left, as it finds likely.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Hu et al., FlashDLM: accelerating diffusion language model inference via FreeCache and guided diffusion, 2025",
    reduces_to="left-to-right for chunk = 1",
    parent="left-to-right",
    home="text that a small autoregressive model predicts well",
    needs=(DRAFT,),
    published="up to 34 times end to end, together with FreeCache",
)
PUBLISHED = PublishedPreset(
    {
        "freeze": PublishedValue(
            True,
            "its figures are those of a guide together with FreeCache; ours feeds the whole canvas",
        )
    }
)


def build(
    kit: Kit,
    *,
    chunk: Annotated[int, AtLeast(1), "tokens of a draft that the guide reads at most"] = 32,
    top: Annotated[
        int, AtLeast(0), "a token stands that is among the guide's so many likeliest (0: wherever)"
    ] = 1,
    least: Annotated[float, InRange(0, 1), "and has at least this probability under it"] = 0.0,
    relative: Annotated[
        float, InRange(0, 1), "and at least this share of the likeliest token's probability"
    ] = 0.0,
    chance: Annotated[
        bool, "and is accepted by a draw, with the probability that it has (stochastic: top=0)"
    ] = False,
    freeze: Annotated[
        bool, "keep the prompt's and finished blocks' keys and values for good (FreeCache)"
    ] = False,
    block: BlockLength = 32,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.guided import GuidedDenoising
    from polydec.methods.diffusion.refreshes import exact_refresh
    from polydec.methods.diffusion.refreshes.frozen import FrozenRefresh
    from polydec.methods.diffusion.unmaskers.left_to_right import LeftToRightUnmasker

    refresh = FrozenRefresh() if freeze else exact_refresh(kit.denoiser.block)
    # The guide chooses what is written: of this decoder the canvas and its passes are used.
    base = DenoisingDecoder(
        kit.denoiser, LeftToRightUnmasker(), refresh, block, kit.shapers, not freeze
    )
    return GuidedDenoising(base, kit.drafting, chunk, top, least, relative, chance)
