"""`polydec train msd`: a drafter on the states of a vision-language model, in two stages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_training
from polydec.lab.train.image_drafting import (
    ImageDrafterKind,
    ImageLesson,
    ImageStudent,
    image_drafting_course,
)
from polydec.lab.train.specs.msd import MsdSpec
from polydec.lab.train.state_layer import TrainableStateLayer
from polydec.lab.train.target_head import TargetHead
from polydec.methods.speculative.drafters.msd import MsdDrafter
from polydec.models.learned.kinds import msd
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.learned.kinds.msd import MsdModel
from polydec.models.nets.grid_positions import grid_positions


class MsdStudent(ImageStudent):
    """The trainable weights of an MSD drafter.

    Args:
        target: The ends of the target's language model: embeddings, norm and head.
        vocab: The target's vocabulary.
        decoupled: See `MsdModel`.
        seed: Seed of the layer's weights.
    """

    def __init__(
        self, target: TargetHead, vocab: TokenVocabulary, decoupled: bool, seed: int
    ) -> None:
        super().__init__(target, vocab)
        self._decoupled = decoupled
        self.block = TrainableStateLayer(
            target.s, seed, length=target.s.context, sections=target.sections
        )

    def build_artefact(self, rates: Sequence[Sequence[float]] = (), share: float = 0.0) -> MsdModel:
        """The drafter with the weights as they are now.

        Args:
            rates: How often the token of each rank is right, by level. Default: not known.
            share: Cost of a draft, in passes of the target. Default 0.

        Returns:
            The drafter's weights.
        """
        # An artefact is a view of the weights: gradients pass through it.
        eagle = EagleModel(self.fuse, self.block.layer, self._vocab, rates, share)
        return MsdModel(eagle, self._decoupled)

    def forward(self, lessons: Sequence[ImageLesson], noise: Sequence[Tensor] = ()) -> Tensor:
        """Guess the state behind each place of some texts.

        Args:
            lessons: The texts.
            noise: Of each what is added to its states, ``[N, H]``. Default: nothing.

        Returns:
            Shape ``[B, N, H]``, of short texts filled up behind them.
        """
        x_BNH = self.text_rows(self.build_artefact(), lessons, noise)
        if not self._target.sections:
            return self.block(x_BNH)
        # Images stand elsewhere in each text, so each has turns of its own.
        count = x_BNH.shape[1]
        turns = [self.block.section_turns(grid_positions(x.grids, range(count))) for x in lessons]
        cos_BND, sin_BND = (torch.stack(parts) for parts in zip(*turns, strict=True))
        return self.block(x_BNH, turn=(cos_BND[:, None], sin_BND[:, None]))

    def guess_states(
        self, lessons: Sequence[ImageLesson], noise: Sequence[Tensor] = ()
    ) -> list[tuple[Tensor, Tensor]]:
        """Guess the states behind each place of some texts: see `ImageStudent`.

        Args:
            lessons: The texts.
            noise: Of each what is added to its states, ``[N, H]``. Default: nothing.

        Returns:
            Of each text the places of its rows, and the states guessed there.
        """
        return [
            (torch.arange(len(x.state_NH)), made_NH[: len(x.state_NH), None])
            for x, made_NH in zip(lessons, self(lessons, noise), strict=True)
        ]


def train_msd(spec: MsdSpec) -> dict[str, Any]:
    """Train a drafter behind images, and save it at spec.out.

    See `image_drafting_course` for what is learned and measured, and `run_training`.

    Raises:
        RequestError: An option of the spec is wrong, the target reads no images or is of a kind that
            no drafter is trained for, or there are too few questions.
        FileError: The questions cannot be read.

    Source: MSD (Lin et al. 2025), the stages and what enters; EAGLE (Li et al. 2024), the losses.
    """
    return run_training("msd", spec, _course, time.process_time)


def _course(spec: MsdSpec) -> TrainingRun:
    return image_drafting_course(
        spec,
        ImageDrafterKind(
            lambda target, vocab: MsdStudent(target, vocab, spec.decoupled, spec.seed),
            MsdDrafter,
            msd.save,
        ),
    )
