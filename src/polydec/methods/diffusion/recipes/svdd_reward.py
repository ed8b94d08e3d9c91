"""A reward of texts says which of several edits is taken."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import (
    AnswerLength,
    BlockLength,
    BlockPasses,
    EditTries,
    LengthPull,
    RewardHeat,
)
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="svdd-reward",
    title="SVDD with a reward of texts",
    aliases=("svdd-pm",),
    summary="Draws several edits for each pass; taken is the one whose finished text a classifier or a function likes best.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Li et al., Derivative-free guidance in continuous and discrete diffusion models (SVDD), 2024",
    reduces_to="mdlm for tries = 1",
    parent="svdd",
    home="drawn text (temperature 1) that should have a property which can be tested",
    needs=(ArtefactNeed("reward"),),
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
    heat: RewardHeat = 0.0,
    length: AnswerLength = 0,
    pull: LengthPull = 1.0,
    block: BlockLength = 0,
    steps: BlockPasses = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.canvas_rewards import (
        AnswerTextReward,
        PosteriorMeanValue,
        TargetLengthReward,
    )
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.soft_value import SoftValueDenoising
    from polydec.methods.diffusion.refreshes import exact_refresh
    from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker
    from polydec.models.learned.kinds.reward import TextReward

    # MDLM's sampler draws position and token: the tries of a pass differ in both.
    base = DenoisingDecoder(
        kit.denoiser, AtRandomUnmasker(steps), exact_refresh(kit.denoiser.block), block, kit.shapers
    )
    # The length is wanted of the answer apart from what the reward says of its text.
    reward = TargetLengthReward(
        AnswerTextReward(kit.needed_artefact(TextReward).judge), length, pull
    )
    return SoftValueDenoising(base, PosteriorMeanValue(reward), tries, heat)
