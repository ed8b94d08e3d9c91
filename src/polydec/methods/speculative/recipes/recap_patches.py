"""ReCAP over a masked model of patches: MAR's passes in groups."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
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
    name="recap-patches",
    title="ReCAP, of pictures of vectors",
    summary="Every other pass of masked-mar runs on the patches alone that it and the pass before it draw.",
    kind="drawing",
    family="patches",
    guarantee=Exactness.APPROXIMATE,
    source="Plug-and-play context feature reuse for efficient masked generation (ReCAP), 2025",
    reduces_to="masked-mar for partial = 0",
    parent="masked-mar",
    home="pictures of many patches, in many passes",
    needs=(PATCHES,),
    needs_training=True,
    aliases=("masked-mar-recap",),
    published="up to 2.4 times faster at nearly equal quality",
)
PUBLISHED = PublishedPreset(
    {
        "steps": PublishedValue(36, "36 to 128 for 256 patches; masked-mar's 12 here"),
        "before": PublishedValue(18, "half of its passes"),
        "prompt_fed": PublishedValue(True, "its class runs in every pass; no other prompt does"),
        "noise": PublishedValue(
            False, "the last step is its mean; with its noise a picture has a density"
        ),
        "guidance": PublishedValue(2.0, "scales of 3.0 to 3.2; none here, as elsewhere"),
        "growing": PublishedValue(True, "its scale grows with the share of the picture"),
    }
)


def build(
    kit: Kit,
    *,
    steps: SetCount = 12,
    curve: CurveName = "cosine",
    before: Annotated[int, AtLeast(0), "passes that feed all at first"] = 6,
    partial: Annotated[
        int, InRange(0, 64), "passes behind each that feeds all, on what it planned alone"
    ] = 1,
    prompt_fed: Annotated[bool, "these feed the prompt as well"] = False,
    noise: Annotated[
        bool, "the last step adds its noise as every other one (false: it is its mean)"
    ] = True,
    guidance: PromptStrength = 0.0,
    growing: GrowingGuidance = False,
) -> Decoder:
    from polydec.methods.speculative.loop.patch_sets import (
        PatchSetDecoder,
        SetGroups,
        SetSchedule,
    )
    from polydec.models.learned.kinds.patch_head import PatchHead

    return PatchSetDecoder(
        kit.denoiser,
        kit.needed_artefact(PatchHead),
        SetSchedule(steps, curve),
        noise=noise,
        guidance=guidance,
        growing=growing,
        groups=SetGroups(before, partial, prompt_fed),
    )
