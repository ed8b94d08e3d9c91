"""MaskGIT's iterative decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import (
    BlockLength,
    CoolestDraw,
    CurveName,
    OrderNoise,
    PromptStrength,
)
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="maskgit",
    title="MaskGIT",
    summary="Fills few gaps at first and many at last, the surest ones but for a noise that fades.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Chang et al., MaskGIT: masked generative image transformer, 2022",
    arxiv="2202.04200",
    reduces_to="llada with drawn tokens for noise = 0 and curve = linear",
    parent="llada",
    home="pictures as tokens",
    published="8 to 16 passes for 256 tokens of a picture",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    steps: Annotated[int, AtLeast(1), "passes that a block is given"] = 12,
    noise: OrderNoise = 4.5,
    curve: CurveName = "cosine",
    coolest: CoolestDraw = 1.0,
    guidance: PromptStrength = 0.0,
    block: BlockLength = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.prompted import PromptGuidedDenoiser
    from polydec.methods.diffusion.refreshes import exact_refresh
    from polydec.methods.diffusion.unmaskers.annealed import AnnealedUnmasker

    # Guidance runs a second canvas, without the prompt, in the same pass.
    denoiser = PromptGuidedDenoiser(kit.denoiser, guidance) if guidance else kit.denoiser
    return DenoisingDecoder(
        denoiser,
        AnnealedUnmasker(steps, noise, curve, coolest),
        exact_refresh(kit.denoiser.block),
        block,
        kit.shapers,
    )
