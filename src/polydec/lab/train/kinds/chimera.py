"""Chimera."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polydec.core.types import Vocab
from polydec.lab.train.state_layer import Block
from polydec.lab.train.students import UNROLLED, Kind, LayerStudent, Rates, Shown, Student
from polydec.methods.speculative.drafters.eagle import FromEagle
from polydec.models.learned.kinds import chimera
from polydec.models.learned.kinds.chimera import Chimera
from polydec.models.learned.state_layer import StateLayer


def make_chimera(shown: Shown) -> Student:
    s = shown.target.s

    def make(
        t: Sequence[Tensor], layer: StateLayer | None, vocab: Vocab, rates: Rates, share: float
    ) -> Chimera:
        assert layer is not None
        return Chimera((t[0], t[1]), t[2:], layer, vocab, rates, share)

    return LayerStudent(
        shown, chimera.begun(s.width, shown.levels, shown.seed), Block(s, shown.seed), make
    )


KINDS = {"chimera": Kind(make_chimera, FromEagle, chimera.save, takes=UNROLLED)}
