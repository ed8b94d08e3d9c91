"""Continuous drafts under exact verification: whole trajectories from noise to a patch are tested."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import PromptStrength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, PATCHES, Kit
from polydec.methods.speculative.recipes._options import (
    DraftedPatchCount,
)

CARD = Card(
    name="continuous-speculative-exact",
    title="Continuous drafts, verified exactly",
    summary="A smaller model draws patches ahead; the trajectories behind them are tested, and the target's law stays.",
    kind="drawing",
    family="ar",
    guarantee=Exactness.LAW,
    source="Continuous speculative decoding for autoregressive image generation, 2024 (its drafts); Leviathan et al., 2023 "
    "(the test)",
    reduces_to="mar, number by number, for a draft that is the target",
    parent="mar",
    home="models of `polydec train patches` whose pass takes longer than the head's steps",
    needs=(DRAFT, PATCHES),
    needs_training=True,
    aliases=("cspd-exact",),
)


def build(
    kit: Kit,
    *,
    depth: DraftedPatchCount = 4,
    guidance: PromptStrength = 0.0,
) -> Decoder:
    from polydec.methods.speculative.loop.patch_drawing import PatchDecoder, PatchDrafter
    from polydec.models.learned.kinds.patch_head import PatchHead

    other = kit.of_draft.needed_artefact(PatchHead)
    drafter = PatchDrafter(kit.drafting, other, depth)
    return PatchDecoder(kit.target, kit.needed_artefact(PatchHead), drafter, guidance=guidance)
