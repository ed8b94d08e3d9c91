"""MAR: pictures of patches that are vectors, each drawn by a diffusion head."""

from __future__ import annotations

from typing import Annotated

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import PromptStrength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import PATCHES, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="mar",
    title="Pictures of continuous tokens (MAR), patch by patch",
    summary="Behind each patch the model says a state, and a diffusion head draws the next patch of it, as a vector.",
    kind="drawing",
    family="ar",
    guarantee=Exactness.LAW,
    source="Li et al., Autoregressive image generation without vector quantization, 2024 (its head, in the order of a text)",
    reduces_to="itself: it is the law of a model of patches",
    parent="plain",
    home="models of `polydec train patches`",
    needs=(PATCHES,),
    needs_training=True,
    aliases=("continuous-tokens", "diffusion-head"),
    arxiv="2406.11838",
)
PUBLISHED = PublishedPreset(
    {
        "noise": PublishedValue(
            False, "the last step is its mean; with its noise a picture has a density"
        ),
        "guidance": PublishedValue(2.0, "a scale of 3 on ImageNet; none here, as elsewhere"),
    }
)


def build(
    kit: Kit,
    *,
    noise: Annotated[
        bool, "the last step adds its noise as every other one (false: it is its mean)"
    ] = True,
    guidance: PromptStrength = 0.0,
) -> Decoder:
    from polydec.methods.speculative.loop.patch_drawing import PatchDecoder
    from polydec.models.learned.kinds.patch_head import PatchHead

    return PatchDecoder(kit.target, kit.needed_artefact(PatchHead), noise=noise, guidance=guidance)
