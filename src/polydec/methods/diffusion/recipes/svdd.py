"""An autoregressive model says which of several edits is taken."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import (
    AnswerLength,
    BlockLength,
    BlockPasses,
    EditTries,
    LengthPull,
)
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="svdd",
    title="SVDD",
    aliases=("soft-value-based-decoding",),
    arxiv="2408.08252",
    summary="Draws several edits for each pass; taken is the one whose finished text an autoregressive model finds likeliest.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Li et al., Derivative-free guidance in continuous and discrete diffusion models (SVDD), 2024",
    reduces_to="mdlm for tries = 1",
    parent="mdlm",
    home="drawn text (temperature 1) that a small autoregressive model judges well",
    needs=(DRAFT,),
)
PUBLISHED = PublishedPreset(
    {
        "tries": PublishedValue(10, "10 edits are drawn for each pass"),
    }
)


def build(
    kit: Kit,
    *,
    tries: EditTries = 8,
    heat: Annotated[
        float,
        AtLeast(0),
        "nats a token: the higher, the less the judge counts (0: the best edit is taken)",
    ] = 0.0,
    length: AnswerLength = 0,
    pull: LengthPull = 1.0,
    block: BlockLength = 0,
    steps: BlockPasses = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.canvas_rewards import (
        LikelihoodReward,
        PosteriorMeanValue,
        TargetLengthReward,
    )
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.soft_value import SoftValueDenoising
    from polydec.methods.diffusion.refreshes import exact_refresh
    from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker

    # MDLM's sampler draws position and token: the tries of a pass differ in both.
    base = DenoisingDecoder(
        kit.denoiser, AtRandomUnmasker(steps), exact_refresh(kit.denoiser.block), block, kit.shapers
    )
    # A mean log-probability does not mind the length: the penalty does.
    reward = TargetLengthReward(LikelihoodReward(kit.drafting), length, pull)
    return SoftValueDenoising(base, PosteriorMeanValue(reward), tries, heat)
