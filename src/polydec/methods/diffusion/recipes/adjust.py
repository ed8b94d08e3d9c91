"""A small layer lets several gaps of one pass see each other."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="adjust",
    title="ADJUST",
    aliases=("approximate-joint-sampling", "joint-sampling"),
    needs_training=True,
    summary="After each pass a trained layer runs a few times instead of the model, and sees each token that was just written.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="ADJUST: enabling approximate joint sampling in diffusion language models, 2025",
    reduces_to="dream for count = 1",
    parent="dream",
    home="drawn text (temperature 1) whose tokens depend on each other",
    needs=(ArtefactNeed("joint"),),
    published="MAUVE 0.87 where independent marginals reach 0.31, at 4 tokens a pass (Dream-7B-Base)",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    count: Annotated[
        int, AtLeast(1), "gaps that are filled after each pass, one after the other"
    ] = 4,
    block: BlockLength = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.joint import JointDenoising
    from polydec.methods.diffusion.refreshes.full import FullRefresh
    from polydec.methods.diffusion.unmaskers.entropy import EntropyUnmasker
    from polydec.models.learned.kinds.joint import JointSamplerLayer

    # As published: the lowest entropy first, and every pass feeds the whole canvas.
    base = DenoisingDecoder(kit.denoiser, EntropyUnmasker(), FullRefresh(), block, kit.shapers)
    return JointDenoising(base, kit.needed_artefact(JointSamplerLayer), count)
