"""`polydec train flash`: a drafter behind images that are compressed for it, of several tokens a pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_training
from polydec.lab.train.image_drafting import (
    ImageDrafterKind,
    ImageLesson,
    ImageStudent,
    image_drafting_course,
)
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.flash import FlashSpec
from polydec.lab.train.state_layer import TrainableStateLayer
from polydec.lab.train.target_head import TargetHead
from polydec.methods.speculative.drafters.flash import FlashDrafter
from polydec.models.learned.block_layer import BlockLayer, block_states
from polydec.models.learned.kinds import flash
from polydec.models.learned.kinds.flash import FlashModel


class FlashStudent(ImageStudent):
    """The trainable weights of a FLASH drafter.

    Args:
        target: The ends of the target's language model: embeddings, norm and head.
        vocab: The target's vocabulary.
        spec: How many rows an image becomes, how many states a pass guesses, and the seed.
    """

    def __init__(self, target: TargetHead, vocab: TokenVocabulary, spec: FlashSpec) -> None:
        super().__init__(target, vocab)
        self._spec = spec
        self.block = TrainableStateLayer(
            target.s, spec.seed, length=target.s.context, states=spec.block
        )
        # Queries as large as the vectors that they ask: each begins with an eye for some of them.
        g = generator_for(spec.seed, 0, "latents")
        self.latents = nn.Parameter(torch.randn(spec.latents, target.s.width, generator=g))

    def build_artefact(
        self, rates: Sequence[Sequence[float]] = (), share: float = 0.0
    ) -> FlashModel:
        """The drafter with the weights as they are now.

        Args:
            rates: How often the token of each rank is right, by level. Default: not known.
            share: Cost of a draft, in passes of the target. Default 0.

        Returns:
            The drafter's weights.
        """
        # An artefact is a view of the weights: gradients pass through it.
        spec = self._spec
        layer = BlockLayer(self.block.layer, spec.block)
        # Nothing is compressed where an image becomes no rows.
        latents = self.latents if spec.latents else None
        return FlashModel(self.fuse, layer, latents, self._vocab, rates, share, spec.scaled)

    def forward(self, lessons: Sequence[ImageLesson], noise: Sequence[Tensor] = ()) -> Tensor:
        """Guess the states behind each row of some texts.

        Args:
            lessons: The texts.
            noise: Of each what is added to its states, ``[N, H]``. Default: nothing.

        Returns:
            Shape ``[B, R, K, H]``, of short texts filled up behind them.
        """
        # Rows count places as drafting does: mixtures stand where the image stood, closer together.
        x_BRH = self.text_rows(self.build_artefact(), lessons, noise).float()
        q, k, v = self.block.project_rows(x_BRH, torch.arange(x_BRH.shape[1]))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        tensors = self.block.layer.tensors
        out = mixed.transpose(1, 2).flatten(2)
        x_BRH = x_BRH + F.linear(out, tensors["self_attn.o_proj.weight"])
        return block_states(tensors, x_BRH, self._spec.block)

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
        model = self.build_artefact()
        places = [model.row_places(x.visual_M[:-1]) for x in lessons]
        return [
            (place_R, made_RKH[: len(place_R)])
            for place_R, made_RKH in zip(places, self(lessons, noise), strict=True)
        ]


def train_flash(spec: FlashSpec) -> dict[str, Any]:
    """Train a drafter behind compressed images, and save it at spec.out.

    See `image_drafting_course` for what is learned and measured, and `run_training`. What
    compresses is learned with the rest.

    Raises:
        RequestError: An option of the spec is wrong, the target reads no images or is of a kind that
            no drafter is trained for, or there are too few questions.
        FileError: The questions cannot be read.

    Source: FLASH (2025), mixtures of an image's vectors and blocks of states; MSD (Lin et al.
    2025), the stages; EAGLE (Li et al. 2024), the losses.
    """
    return run_training("flash", spec, _course, time.process_time)


def _course(spec: FlashSpec) -> TrainingRun:
    return image_drafting_course(
        spec,
        ImageDrafterKind(
            lambda target, vocab: FlashStudent(target, vocab, spec),
            FlashDrafter,
            flash.save,
        ),
    )
