"""Clover."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polydec.core.types import Vocab
from polydec.lab.train.state_layer import Block
from polydec.lab.train.students import HeadStudent, Kind, Rates, Shown, Student
from polydec.methods.speculative.drafters.heads import FromHeads
from polydec.models.learned.kinds import clover
from polydec.models.learned.kinds.clover import Clover
from polydec.models.learned.state_layer import StateLayer


def make_clover(shown: Shown) -> Student:
    s = shown.target.s
    attend, out = clover.begun(s.width, shown.seed, 0.01)

    def make(
        t: Sequence[Tensor], layer: StateLayer | None, vocab: Vocab, rates: Rates, share: float
    ) -> Clover:
        assert layer is not None
        return Clover(
            layer,
            (t[0], t[1], t[2]),
            ((t[3], t[4], t[5]), (t[6], t[7], t[8])),
            shown.levels,
            vocab,
            rates,
            share,
        )

    return HeadStudent(shown, [*attend, *out[0], *out[1]], Block(s, shown.seed), make)


KINDS = {"clover": Kind(make_clover, FromHeads, clover.save, 3, 1.0)}
