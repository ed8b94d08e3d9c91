"""EAGLE-3, over a head of its own, over one that is kept, and as others publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polydec.core.types import TokenVocabulary
from polydec.lab.train.state_layer import NarrowBlock, PublishedBlock, TrainableStateLayer
from polydec.lab.train.students import (
    HEADED,
    DrafterKind,
    DrafterStudent,
    LayerStudent,
    Rates,
    TeacherContext,
)
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.models.learned import published
from polydec.models.learned.kinds import eagle3, narrow
from polydec.models.learned.kinds.eagle3 import Eagle3Model
from polydec.models.learned.published import eagle3_layer_shapes
from polydec.models.learned.state_layer import DraftVocabularyHead


def depths_of(layers: int) -> tuple[int, ...]:
    """After which layers EAGLE-3 reads the states: a low, a middle and a high one.

    A shallow target has fewer.
    """
    return tuple(sorted({max(1, layers // 4), max(1, layers // 2), max(1, layers - 1)}))


def quarters_of(layers: int) -> tuple[int, ...]:
    """The layer after each quarter of the target's layers."""
    return tuple(sorted({max(1, n * layers // 4) for n in range(1, 5)}))


def make_eagle3(published: bool) -> Callable[[TeacherContext], DrafterStudent]:
    """Makes EAGLE-3 students; `published`: in the layout of models/learned/published.py."""

    def start_student(shown: TeacherContext) -> DrafterStudent:
        s = shown.target.s
        depths = depths_of(shown.target.s.layers)

        def make_artefact(
            t: Sequence[Tensor], layer: Any, vocab: TokenVocabulary, rates: Rates, share: float
        ) -> Eagle3Model:
            """Build the artefact of a student's tensors.

            Args:
                t: The fusing matrix, the rows of the head and the norm before it.
                layer: The layer of the student.
                vocab: The target's vocabulary.
                rates: How often the token of each rank is right, by level.
                share: Cost of a draft, in passes of the target.

            Returns:
                The drafter's weights.
            """
            return Eagle3Model(
                t[0],
                depths,
                layer,
                DraftVocabularyHead(shown.tokens, t[1], t[2]),
                vocab,
                rates,
                share,
                not published,
            )

        # The fusing matrix begins as the mean of the read layers; head and norm begin as the
        # target's.
        tensors = [
            torch.eye(s.width).repeat(1, len(depths)) / len(depths),
            shown.table_VH[shown.tokens].clone(),
            shown.target.model.norm.weight.detach().clone(),
        ]
        if published:
            block = PublishedBlock(s, shown.seed, eagle3_layer_shapes)
        else:
            block = TrainableStateLayer(s, shown.seed, 2 * s.width)
        student = LayerStudent(shown, tensors, block, make_artefact)
        student.columns = shown.tokens
        return student

    return start_student


def make_narrow(shown: TeacherContext) -> DrafterStudent:
    """An EAGLE-3 student of the target's width, over a head that is not trained.

    The head is that of the draft model that it begins as, else the target's rows.
    """
    s = shown.target.s
    depths = quarters_of(shown.target.s.layers)
    begin = shown.begin
    trunk = shown.target.model
    head_CH, norm_H = (
        trunk.embed_tokens.weight[shown.tokens].clone(),
        trunk.norm.weight.detach().clone(),
    )
    table_VH = trunk.embed_tokens.weight
    if begin is not None:
        # The draft model's own head and norm, which fit one another.
        head_CH, norm_H = narrow.head_of(begin, shown.tokens), begin["model.norm.weight"].float()
        table_VH = begin.get("model.embed_tokens.weight", table_VH)
    # The root mean square of the embeddings: the layer's norm has to see tokens as the draft model
    # did.
    scale = float(table_VH[shown.tokens].float().square().mean(-1).sqrt().mean())

    def make_artefact(
        t: Sequence[Tensor], layer: Any, vocab: TokenVocabulary, rates: Rates, share: float
    ) -> Eagle3Model:
        """Build the artefact of a student's tensors.

        Args:
            t: The fusing matrix and the norm before the head.
            layer: The layer of the student.
            vocab: The target's vocabulary.
            rates: How often the token of each rank is right, by level.
            share: Cost of a draft, in passes of the target.

        Returns:
            The drafter's weights.
        """
        return Eagle3Model(
            t[0],
            depths,
            layer,
            DraftVocabularyHead(shown.tokens, head_CH, t[1]),
            vocab,
            rates,
            share,
        )

    fuse = torch.eye(s.width).repeat(1, len(depths)) / len(depths)
    student = LayerStudent(
        shown, [fuse, norm_H], NarrowBlock(s, shown.seed, begin, scale), make_artefact
    )
    # Laws are over the head's tokens only.
    student.columns = shown.tokens
    return student


KINDS = {
    "eagle-3": DrafterKind(
        make_eagle3(False), EagleDrafter, eagle3.save, 4, depths=depths_of, takes=HEADED
    ),
    "eagle-3-narrow": DrafterKind(
        make_narrow,
        EagleDrafter,
        narrow.save_trained,
        4,
        depths=quarters_of,
        takes=HEADED | {"start"},
    ),
    "eagle-3-published": DrafterKind(
        make_eagle3(True),
        EagleDrafter,
        published.save_published_eagle3,
        4,
        depths=depths_of,
        takes=HEADED,
    ),
}
