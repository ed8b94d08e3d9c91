"""Whole texts that are rewritten from noise."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import GreaterThan, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="rum-sundae",
    title="RUM-SUNDAE (rewritten from noise until nothing changes)",
    aliases=("sundae", "step-unrolled denoising"),
    arxiv="2112.06749",
    summary="Begins with random tokens and rewrites the least likely ones of the whole answer until no round changes any.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Yoshida, Making the most of your model: methods for finetuning and applying pretrained transformers, 2024; Savinov "
    "et al., Step-unrolled denoising autoencoders for text generation, 2022",
    reduces_to="llada with steps = 1, for one round, one start and no noise, without chance",
    parent="llada",
    home="translations and repairs in a few passes, by a model that was trained for it (`polydec train diffusion --unroll 2`)",
    needs_training=True,
)
PUBLISHED = PublishedPreset(
    refused="its rounds, shares and how many lengths are tried could not be read"
)


def build(
    kit: Kit,
    *,
    rounds: Annotated[int, InRange(1, 1024), "passes at most"] = 10,
    share: Annotated[
        float, GreaterThan(0), InRange(0, 1), "part of the positions that a round may write"
    ] = 0.5,
    starts: Annotated[
        int, InRange(1, 64), "texts side by side, of which the likeliest is answered"
    ] = 1,
    noise: Annotated[
        bool, "begin with random tokens; else with gaps, as masked-diffusion models do"
    ] = True,
    lengths: Annotated[
        int,
        InRange(0, 64),
        ValueNote("0: a text's own end tells it"),
        "likeliest lengths that are tried, foretold by a head (--with)",
    ] = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.refining import RefiningDecoder
    from polydec.models.learned.kinds.length_head import LengthHead

    # A head that is not asked is not needed.
    head = (
        kit.needed_artefact(LengthHead, asked_by=f"lengths is {lengths}, and ") if lengths else None
    )
    return RefiningDecoder(kit.denoiser, rounds, share, starts, noise, kit.shapers, lengths, head)
