"""Chimera."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polydec.core.types import TokenVocabulary
from polydec.lab.train.state_layer import TrainableStateLayer
from polydec.lab.train.students import (
    UNROLLED,
    DrafterKind,
    DrafterStudent,
    LayerStudent,
    Rates,
    TeacherContext,
)
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.models.learned.kinds import chimera
from polydec.models.learned.kinds.chimera import ChimeraModel
from polydec.models.learned.state_layer import StateLayer


def make_chimera(shown: TeacherContext) -> DrafterStudent:
    """A Chimera student: new tensors and a layer, over the states of the target."""
    s = shown.target.s

    def make_artefact(
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> ChimeraModel:
        """Build the artefact of a student's tensors.

        Args:
            t: The two matrices of the trigram encoder, then the other tensors.
            layer: The layer of the student.
            vocab: The target's vocabulary.
            rates: How often the token of each rank is right, by level.
            share: Cost of a draft, in passes of the target.

        Returns:
            The drafter's weights.
        """
        assert layer is not None
        # The first two tensors make the code of three tokens; the others are heads.
        return ChimeraModel((t[0], t[1]), t[2:], layer, vocab, rates, share)

    return LayerStudent(
        shown,
        chimera.new_chimera_tensors(s.width, shown.levels, shown.seed),
        TrainableStateLayer(s, shown.seed),
        make_artefact,
    )


KINDS = {"chimera": DrafterKind(make_chimera, EagleDrafter, chimera.save, takes=UNROLLED)}
