"""MuLo-SD's drafts under exact verification."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import SMALLER_DRAFT, ArtefactNeed, Kit
from polydec.methods.speculative.recipes._options import LiftedByNetwork

CARD = Card(
    name="mulo-sd-exact",
    title="Multi-scale drafts, verified exactly",
    summary="A model of smaller pictures drafts rows, which an up-sampler lifts; the law of the large model stays as it is.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Multi-scale local speculative decoding for image generation, 2026 (its drafts); Leviathan et al., 2023 (the test)",
    reduces_to="plain at depth 0, and behind a picture",
    parent="plain",
    home="pictures as tokens, of many rows",
    needs=(SMALLER_DRAFT, ArtefactNeed("upsampler")),
    needs_training=True,
    aliases=("multi-scale-draft",),
)


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 1024), "tokens of a draft at most"] = 16,
    drawn: Annotated[
        bool, "draw drafted tokens from the up-sampler's laws (false: the likeliest)"
    ] = True,
    trained: LiftedByNetwork = True,
) -> Decoder:
    from polydec.methods.speculative.drafters.upsampled import UpsampledDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier
    from polydec.models.learned.kinds.upsampler import PictureUpsampler

    drafter = UpsampledDrafter(kit.drafting, kit.needed_artefact(PictureUpsampler), trained, drawn)
    # Each drawn token is tested against the law that it was drawn from.
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(depth))
