"""Medusa, Hydra and Hydra++, and Medusa as others publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polydec.core.types import TokenVocabulary
from polydec.lab.train.state_layer import TrainableStateLayer
from polydec.lab.train.students import (
    DrafterKind,
    DrafterStudent,
    HeadStudent,
    Rates,
    TeacherContext,
)
from polydec.methods.speculative.drafters.heads import HeadsDrafter
from polydec.models.learned import published_medusa
from polydec.models.learned.head import new_draft_heads, new_head_blocks
from polydec.models.learned.kinds import heads
from polydec.models.learned.kinds.heads import DraftHeads
from polydec.models.learned.state_layer import StateLayer


def make_heads(
    reads: bool, layered: bool, blocks: int = 1, own: bool = False
) -> Callable[[TeacherContext], DrafterStudent]:
    """Makes students with one head for each level.

    Args:
        reads: Whether a head reads the tokens before it (Hydra), or the state alone (Medusa).
        layered: Whether a layer over the states stands before the heads (Hydra++).
        blocks: Blocks of each head; those after the first change nothing before training. Default
            1.
        own: Whether each head has a matrix of its own for its laws, which begins as the target's.
            Default False.

    Returns:
        Makes a student of what it may read of the target.
    """

    def start_student(shown: TeacherContext) -> DrafterStudent:
        s = shown.target.s

        def make_artefact(
            t: Sequence[Tensor],
            layer: StateLayer | None,
            vocab: TokenVocabulary,
            rates: Rates,
            share: float,
        ) -> DraftHeads:
            """Build the artefact of a student's tensors.

            Args:
                t: Tensors in the order in which they were made.
                layer: The layer before the heads, or None.
                vocab: The target's vocabulary.
                rates: How often the token of each rank is right, by level.
                share: Cost of a draft, in passes of the target.

            Returns:
                The drafter's weights.
            """
            first = 3 * shown.levels
            last = len(t) - shown.levels * own
            # Two tensors for each further block.
            pairs = [(t[i], t[i + 1]) for i in range(first, last, 2)]
            # The further blocks of each head; without any, one empty group.
            more = [pairs[i : i + blocks - 1] for i in range(0, len(pairs), max(1, blocks - 1))]
            return DraftHeads(
                [(t[i], t[i + 1], t[i + 2]) for i in range(0, first, 3)],
                reads,
                vocab,
                rates,
                layer,
                share,
                t[last:] if own else None,
                more,
            )

        # Tensors lie in this order: three of each head, two of each further block, then the heads'
        # own matrices.
        tensors = [
            t for head in new_draft_heads(s.width, shown.levels, reads, shown.seed) for t in head
        ]
        for level in range(shown.levels):
            for block in new_head_blocks(s.width, blocks - 1, shown.seed + level):
                tensors += block
        tensors += [shown.table_VH.clone() for _ in range(shown.levels * own)]
        student = HeadStudent(
            shown, tensors, TrainableStateLayer(s, shown.seed) if layered else None, make_artefact
        )
        # A matrix of its own reads states after the final norm.
        student.normed = own
        return student

    return start_student


def make_medusa_published(shown: TeacherContext) -> DrafterStudent:
    """A Medusa student in models/learned/published_medusa.py's layout.

    Before training a head passes the state on, and its law is the target's.
    """
    width = shown.target.s.width
    # In this layout a head has no output matrix: it is the identity.
    eye = torch.eye(shown.target.s.width)

    def make_artefact(
        t: Sequence[Tensor], layer: None, vocab: TokenVocabulary, rates: Rates, share: float
    ) -> DraftHeads:
        """Build the artefact of a student's tensors.

        Args:
            t: Three tensors of each head: weight, bias, and the matrix of its laws.
            layer: None: there is no layer.
            vocab: The target's vocabulary.
            rates: How often the token of each rank is right, by level.
            share: Cost of a draft, in passes of the target.

        Returns:
            The drafter's weights.
        """
        return DraftHeads(
            [(t[i], t[i + 1], eye) for i in range(0, len(t), 3)],
            False,
            vocab,
            rates,
            None,
            share,
            t[2::3],
        )

    begun = new_draft_heads(width, shown.levels, False, shown.seed)
    student = HeadStudent(
        shown,
        [t for weight, bias, _ in begun for t in (weight, bias, shown.table_VH.clone())],
        None,
        make_artefact,
    )
    student.normed = True
    return student


KINDS = {
    "medusa": DrafterKind(make_heads(False, False), HeadsDrafter, heads.save),
    "medusa-published": DrafterKind(
        make_medusa_published, HeadsDrafter, published_medusa.save_published_medusa
    ),
    "hydra": DrafterKind(make_heads(True, False), HeadsDrafter, heads.save),
    "hydra++": DrafterKind(make_heads(True, True), HeadsDrafter, heads.save),
    "hydra++-deep": DrafterKind(make_heads(True, True, 4), HeadsDrafter, heads.save),
    "hydra++-own": DrafterKind(make_heads(True, True, 4, own=True), HeadsDrafter, heads.save),
}
