"""MAR over a masked model: patches that are vectors, drawn in sets and in a random order."""

from __future__ import annotations

from typing import Annotated

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import CurveName, PromptStrength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import PATCHES, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import (
    GrowingGuidance,
    SetCount,
)

CARD = Card(
    name="masked-mar",
    title="Masked autoregressive pictures (MAR), set by set",
    summary="A masked model says a state of each gap, and a diffusion head draws a set of patches of them at a time.",
    kind="drawing",
    family="patches",
    guarantee=Exactness.LAW,
    source="Li et al., Autoregressive image generation without vector quantization, 2024",
    reduces_to="itself: it is the law of a masked model of patches, its order and its sets",
    parent="mar",
    home="models of `polydec train patches --masked`",
    needs=(PATCHES,),
    needs_training=True,
    aliases=("mar-sets", "random-order-mar"),
    published="64 sets for 256 patches; FID 1.55 on ImageNet at 256 pixels with guidance (MAR-H)",
)
PUBLISHED = PublishedPreset(
    {
        "noise": PublishedValue(
            False, "the last step is its mean; with its noise a picture has a density"
        ),
        "guidance": PublishedValue(2.0, "a scale of 3 on ImageNet; none here, as elsewhere"),
        "growing": PublishedValue(True, "its scale grows with the share of the picture"),
    }
)


def build(
    kit: Kit,
    *,
    steps: SetCount = 12,
    curve: CurveName = "cosine",
    noise: Annotated[
        bool, "the last step adds its noise as every other one (false: it is its mean)"
    ] = True,
    guidance: PromptStrength = 0.0,
    growing: GrowingGuidance = False,
) -> Decoder:
    from polydec.methods.speculative.loop.patch_sets import PatchSetDecoder, SetSchedule
    from polydec.models.learned.kinds.patch_head import PatchHead

    return PatchSetDecoder(
        kit.denoiser,
        kit.needed_artefact(PatchHead),
        SetSchedule(steps, curve),
        noise=noise,
        guidance=guidance,
        growing=growing,
    )
