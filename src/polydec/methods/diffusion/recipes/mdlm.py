"""MDLM's sampler, one gap at a time."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="mdlm",
    title="Random order (first hitting)",
    arxiv="2406.07524",
    aliases=("first-hitting", "random-order", "ancestral"),
    summary="Fills one gap a pass, drawn at random: the same law as MDLM's ancestral sampler, without its idle passes.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.LAW,
    source="Sahoo et al., Simple and effective masked diffusion language models, 2024; Zheng et al., first hitting, 2024",
    reduces_to="left-to-right for block = 1",
    parent="plain",
    home="sampling from a masked-diffusion model's own law",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    block: BlockLength = 0,
    steps: Annotated[
        int, AtLeast(0), "passes that a block is given (0: one for each gap; else approximate)"
    ] = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import exact_refresh
    from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker

    # The refresh rule must not change a law: the guarantee is the any-order law.
    return DenoisingDecoder(
        kit.denoiser, AtRandomUnmasker(steps), exact_refresh(kit.denoiser.block), block, kit.shapers
    )
