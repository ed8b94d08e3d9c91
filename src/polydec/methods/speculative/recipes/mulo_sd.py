"""MuLo-SD: pictures drafted at a low resolution and corrected near what was refused."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import SMALLER_DRAFT, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import LiftedByNetwork

CARD = Card(
    name="mulo-sd",
    title="Multi-scale local speculative decoding",
    summary="A model of smaller pictures drafts rows; tokens stand whose look-alikes are likely, and only around the others is "
    "drawn anew.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Multi-scale local speculative decoding for image generation, 2026",
    reduces_to="plain for a threshold above 1 and a radius as wide as the picture",
    parent="mulo-sd-exact",
    home="pictures as tokens, of many rows",
    needs=(SMALLER_DRAFT, ArtefactNeed("upsampler")),
    needs_training=True,
    aliases=("mulo", "multi-scale-local"),
    published="up to 1.7 times plain decoding at equal quality; with rows drafted in parallel 2.03 times (Tar-7B, 512 pixels) "
    "and 5.33 times (1024 pixels)",
    unexercised={"rejected": "of a toy's few tokens nearly all are neighbours of one another"},
)
PUBLISHED = PublishedPreset(
    unknown="its threshold, neighbours and radius could not be read, so ours stay; a row is drafted token by token"
)


def build(
    kit: Kit,
    *,
    near: Annotated[int, AtLeast(1), "tiles that count as alike, the token's own among them"] = 4,
    threshold: Annotated[
        float,
        InRange(0, 2),
        "probability that they need together for a token to stand (above 1: none stands)",
    ] = 0.1,
    radius: Annotated[
        int, AtLeast(0), "rows and columns around a refused token that are drawn anew"
    ] = 1,
    local: Annotated[
        bool,
        "draw anew near refused tokens alone (false, and under a constraint: all behind the first one is drafted again)",
    ] = True,
    drawn: Annotated[
        bool, "draw drafted tokens from the up-sampler's laws (false: the likeliest)"
    ] = False,
    trained: LiftedByNetwork = True,
) -> Decoder:
    from polydec.methods.speculative.drafters.upsampled import UpsampledDrafter
    from polydec.methods.speculative.loop.local_resampling import resampling_decoder
    from polydec.methods.speculative.verifiers.neighbourhood import NeighbourhoodVerifier
    from polydec.models.learned.kinds.upsampler import PictureUpsampler

    upsampler = kit.needed_artefact(PictureUpsampler)
    drafter = UpsampledDrafter(kit.drafting, upsampler, trained, drawn)
    # A constraint allows some texts alone: neighbours speak for no token.
    test = NeighbourhoodVerifier(upsampler, near, threshold, kit.language is not None)
    return resampling_decoder(kit.target, drafter, test, radius, local=local)
