"""Continuous speculative decoding: a smaller model draws patches ahead, as published."""

from __future__ import annotations

from math import ceil
from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import PromptStrength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, PATCHES, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import (
    DoubledFactor,
    DraftedPatchCount,
    InnerTemperature,
    ParallelRedraw,
    PatchTries,
)

CARD = Card(
    name="continuous-speculative",
    title="Continuous speculative decoding (CSpD)",
    summary="A smaller model draws patches ahead; the target goes from the same noise, and the ends of both are compared.",
    kind="drawing",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Continuous speculative decoding for autoregressive image generation, 2024",
    reduces_to="mar with noise=false, number by number, for a draft that is the target",
    parent="mar",
    home="models of `polydec train patches` whose pass takes longer than the head's steps",
    needs=(DRAFT, PATCHES),
    needs_training=True,
    aliases=("cspd",),
    arxiv="2411.11925",
    published="up to 2.33 times MAR-H on ImageNet at 256 pixels, at about equal FID",
)
PUBLISHED = PublishedPreset(
    {"guidance": PublishedValue(2.0, "a scale of 3 on ImageNet; none here, as elsewhere")},
    unknown="a model draws patches one by one here, so a draft of 8 is of 8 patches; masked-continuous-speculative draws sets",
)


def build(
    kit: Kit,
    *,
    depth: DraftedPatchCount = 8,
    prefill: Annotated[
        float, InRange(0, 1), "share of a picture that the target draws first without a draft"
    ] = 0.15,
    widen: InnerTemperature = 42.0,
    retries: PatchTries = 100,
    doubled: DoubledFactor = False,
    parallel: ParallelRedraw = False,
    guidance: PromptStrength = 0.0,
) -> Decoder:
    from polydec.methods.speculative.loop.patch_drawing import PatchDecoder, PatchDrafter
    from polydec.methods.speculative.loop.patch_tests import AlignedPatchTest
    from polydec.models.learned.kinds.patch_head import PatchHead

    head = kit.needed_artefact(PatchHead)
    other = kit.of_draft.needed_artefact(PatchHead)
    drafter = PatchDrafter(kit.drafting, other, depth, ceil(prefill * head.patches))
    test = AlignedPatchTest(widen, retries, doubled, parallel)
    return PatchDecoder(kit.target, head, drafter, test, guidance=guidance)
