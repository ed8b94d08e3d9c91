"""Continuous drafts of sets under exact verification: whole trajectories from noise to a patch are tested."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import CurveName, PromptStrength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import PATCH_DRAFT, PATCHES, Kit
from polydec.methods.speculative.recipes._options import (
    DraftedSets,
    GrowingGuidance,
    SetCount,
)

CARD = Card(
    name="masked-continuous-speculative-exact",
    title="Continuous drafts of sets, verified exactly",
    summary="A smaller masked model draws sets of patches ahead; each patch's trajectory is tested, and the law stays.",
    kind="drawing",
    family="patches",
    guarantee=Exactness.LAW,
    source="Continuous speculative decoding for autoregressive image generation, 2024 (its drafts); Leviathan et al., 2023 "
    "(the test)",
    reduces_to="masked-mar, number by number, for a draft that is the target",
    parent="masked-mar",
    home="models of `polydec train patches --masked` on hardware where a batch of canvases takes as long as one",
    needs=(PATCH_DRAFT, PATCHES),
    needs_training=True,
    aliases=("masked-cspd-exact",),
)


def build(
    kit: Kit,
    *,
    steps: SetCount = 12,
    curve: CurveName = "cosine",
    depth: DraftedSets = 2,
    guidance: PromptStrength = 0.0,
    growing: GrowingGuidance = False,
) -> Decoder:
    from polydec.methods.speculative.loop.patch_drawing import PatchDrafter
    from polydec.methods.speculative.loop.patch_sets import PatchSetDecoder, SetSchedule
    from polydec.models.learned.kinds.patch_head import PatchHead

    other = kit.of_draft.needed_artefact(PatchHead)
    return PatchSetDecoder(
        kit.denoiser,
        kit.needed_artefact(PatchHead),
        SetSchedule(steps, curve),
        PatchDrafter(kit.masked_draft, other, depth),
        guidance=guidance,
        growing=growing,
    )
