"""EAGLE, and EAGLE as others publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polydec.core.types import TokenVocabulary
from polydec.lab.train.state_layer import PublishedBlock, TrainableStateLayer, TrainableStateStack
from polydec.lab.train.students import (
    UNROLLED,
    DrafterKind,
    DrafterStudent,
    LayerStudent,
    Rates,
    TeacherContext,
)
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.models.learned import published_eagle1
from polydec.models.learned.kinds import eagle
from polydec.models.learned.kinds.eagle import EagleModel


def make_eagle(published: bool) -> Callable[[TeacherContext], DrafterStudent]:
    """Makes EAGLE students.

    `published`: in the layout of models/learned/published_eagle1.py, where embeddings enter as they
    are; they begin half as long as states.
    """

    def start_student(shown: TeacherContext) -> DrafterStudent:
        s = shown.target.s
        trunk = shown.target.model
        if published:
            # Token embeddings are shorter than normed states; the fusing matrix makes up for it.
            scale = 0.5 * float(
                trunk.norm.weight.norm() / trunk.embed_tokens.weight.norm(dim=-1).mean()
            )
        else:
            scale = 1.0

        def make_artefact(
            t: Sequence[Tensor], layer: Any, vocab: TokenVocabulary, rates: Rates, share: float
        ) -> EagleModel:
            """Build the artefact of a student's tensors.

            Args:
                t: The matrix that fuses token embedding and state.
                layer: The layer of the student.
                vocab: The target's vocabulary.
                rates: How often the token of each rank is right, by level.
                share: Cost of a draft, in passes of the target.

            Returns:
                The drafter's weights.
            """
            return EagleModel(t[0], layer, vocab, rates, share, published)

        if published:
            block = PublishedBlock(s, shown.seed, published_eagle1.eagle1_layer_shapes)
        elif shown.layers == 1:
            block = TrainableStateLayer(s, shown.seed)
        else:
            block = TrainableStateStack(s, shown.seed, shown.layers)
        # The fusing matrix begins as the sum of token embedding and state.
        student = LayerStudent(
            shown,
            [torch.cat([scale * torch.eye(s.width), torch.eye(s.width)], 1)],
            block,
            make_artefact,
        )
        # Published drafters read states after the final norm.
        student.normed = published
        return student

    return start_student


KINDS = {
    "eagle": DrafterKind(
        make_eagle(False), EagleDrafter, eagle.save, 1, 1.0, takes=UNROLLED | {"layers"}
    ),
    "eagle-published": DrafterKind(
        make_eagle(True),
        EagleDrafter,
        published_eagle1.save_published_eagle1,
        1,
        10.0,
        takes=UNROLLED,
    ),
}
