"""Continuous speculative decoding over masked models: a smaller one draws sets of patches ahead, as published."""

from __future__ import annotations

from math import ceil
from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import CurveName, PromptStrength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import PATCH_DRAFT, PATCHES, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import (
    DoubledFactor,
    DraftedSets,
    GrowingGuidance,
    InnerTemperature,
    ParallelRedraw,
    PatchTries,
    SetCount,
)

CARD = Card(
    name="masked-continuous-speculative",
    title="Continuous speculative decoding (CSpD) of sets",
    summary="A smaller masked model draws sets of patches ahead; the target goes from the same noise, and ends are compared.",
    kind="drawing",
    family="patches",
    guarantee=Exactness.APPROXIMATE,
    source="Continuous speculative decoding for autoregressive image generation, 2024",
    reduces_to="masked-mar with noise=false, number by number, for a draft that is the target",
    parent="masked-mar",
    home="models of `polydec train patches --masked` on hardware where a batch of canvases takes as long as one",
    needs=(PATCH_DRAFT, PATCHES),
    needs_training=True,
    aliases=("masked-cspd", "cspd-sets"),
    published="up to 2.33 times MAR-H on ImageNet at 256 pixels, at about equal FID",
)
PUBLISHED = PublishedPreset(
    {
        "guidance": PublishedValue(2.0, "a scale of 3 on ImageNet; none here, as elsewhere"),
        "growing": PublishedValue(True, "its scale grows with the share of the picture"),
    }
)


def build(
    kit: Kit,
    *,
    steps: SetCount = 12,
    curve: CurveName = "cosine",
    depth: DraftedSets = 8,
    prefill: Annotated[
        float, InRange(0, 1), "share of the sets that the target draws first without a draft"
    ] = 0.15,
    widen: InnerTemperature = 42.0,
    retries: PatchTries = 100,
    doubled: DoubledFactor = False,
    parallel: ParallelRedraw = False,
    guidance: PromptStrength = 0.0,
    growing: GrowingGuidance = False,
) -> Decoder:
    from polydec.methods.speculative.loop.patch_drawing import PatchDrafter
    from polydec.methods.speculative.loop.patch_sets import PatchSetDecoder, SetSchedule
    from polydec.methods.speculative.loop.patch_tests import AlignedPatchTest
    from polydec.models.learned.kinds.patch_head import PatchHead

    other = kit.of_draft.needed_artefact(PatchHead)
    return PatchSetDecoder(
        kit.denoiser,
        kit.needed_artefact(PatchHead),
        SetSchedule(steps, curve),
        PatchDrafter(kit.masked_draft, other, depth, ceil(prefill * steps)),
        AlignedPatchTest(widen, retries, doubled, parallel),
        guidance=guidance,
        growing=growing,
    )
