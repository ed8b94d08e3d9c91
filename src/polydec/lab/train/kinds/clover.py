"""Clover."""

from __future__ import annotations

from collections.abc import Sequence

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
from polydec.models.learned.kinds import clover
from polydec.models.learned.kinds.clover import CloverModel
from polydec.models.learned.state_layer import StateLayer


def make_clover(shown: TeacherContext) -> DrafterStudent:
    """A Clover student: attention between states and tokens, heads, and a layer before them."""
    s = shown.target.s
    # The output blocks begin small, at 0.01.
    attend, out = clover.new_clover_tensors(s.width, shown.seed, 0.01)

    def make_artefact(
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> CloverModel:
        """Build the artefact of a student's tensors.

        Args:
            t: Three tensors of the attention, then three of each of the two output blocks.
            layer: The layer before the heads.
            vocab: The target's vocabulary.
            rates: How often the token of each rank is right, by level.
            share: Cost of a draft, in passes of the target.

        Returns:
            The drafter's weights.
        """
        assert layer is not None
        # Nine tensors: three of the attention, three of each output block.
        return CloverModel(
            layer,
            (t[0], t[1], t[2]),
            ((t[3], t[4], t[5]), (t[6], t[7], t[8])),
            shown.levels,
            vocab,
            rates,
            share,
        )

    return HeadStudent(
        shown, [*attend, *out[0], *out[1]], TrainableStateLayer(s, shown.seed), make_artefact
    )


KINDS = {"clover": DrafterKind(make_clover, HeadsDrafter, clover.save, 3, 1.0)}
