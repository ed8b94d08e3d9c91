"""A masked-diffusion model read as an autoregressive one."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="left-to-right",
    title="Left to right",
    aliases=("sequential-unmasking",),
    summary="Fills the leftmost gaps of the canvas, one a pass.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.LAW,
    source="the chain rule; SDAR's sequential order (Cheng et al., 2025)",
    reduces_to="mdlm, in law, where the model's conditionals are consistent",
    parent="mdlm",
    home="order-bound text, and as a yardstick of the other orders",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    block: Annotated[int, AtLeast(0), "positions of a block (0: all are one block)"] = 0,
    steps: Annotated[
        int, AtLeast(0), "passes that a block is given (0: one for each gap; else approximate)"
    ] = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import exact_refresh
    from polydec.methods.diffusion.unmaskers.left_to_right import LeftToRightUnmasker

    # The refresh rule must not change a law: the guarantee is the law of this order.
    return DenoisingDecoder(
        kit.denoiser,
        LeftToRightUnmasker(steps),
        exact_refresh(kit.denoiser.block),
        block,
        kit.shapers,
    )
