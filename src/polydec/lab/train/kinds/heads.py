"""Medusa, Hydra and Hydra++, and Medusa as others publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polydec.core.types import Vocab
from polydec.lab.train.state_layer import Block
from polydec.lab.train.students import HeadStudent, Kind, Rates, Shown, Student
from polydec.methods.speculative.drafters.heads import FromHeads
from polydec.models.learned import published_medusa
from polydec.models.learned.head import deep, fresh
from polydec.models.learned.kinds import heads
from polydec.models.learned.kinds.heads import Heads
from polydec.models.learned.state_layer import StateLayer


def make_heads(
    reads: bool, layered: bool, blocks: int = 1, own: bool = False
) -> Callable[[Shown], Student]:
    """blocks: of each head; those behind the first change nothing before training. own: each head has a matrix that makes its
    laws, which begins as the target's."""

    def start(shown: Shown) -> Student:
        s = shown.target.s

        def make(
            t: Sequence[Tensor], layer: StateLayer | None, vocab: Vocab, rates: Rates, share: float
        ) -> Heads:
            first, last = 3 * shown.levels, len(t) - shown.levels * own
            pairs = [(t[i], t[i + 1]) for i in range(first, last, 2)]
            more = [pairs[i : i + blocks - 1] for i in range(0, len(pairs), max(1, blocks - 1))]
            return Heads(
                [(t[i], t[i + 1], t[i + 2]) for i in range(0, first, 3)],
                reads,
                vocab,
                rates,
                layer,
                share,
                t[last:] if own else None,
                more,
            )

        tensors = [t for head in fresh(s.width, shown.levels, reads, shown.seed) for t in head]
        for level in range(shown.levels):
            for block in deep(s.width, blocks - 1, shown.seed + level):
                tensors += block
        tensors += [shown.table_VH.clone() for _ in range(shown.levels * own)]
        student = HeadStudent(shown, tensors, Block(s, shown.seed) if layered else None, make)
        student.normed = own
        return student

    return start


def make_medusa_published(shown: Shown) -> Student:
    """In models/learned/published_medusa.py's layout: a head passes the state on, and its law is
    the target's, before training."""
    width, eye = shown.target.s.width, torch.eye(shown.target.s.width)

    def make(t: Sequence[Tensor], layer: None, vocab: Vocab, rates: Rates, share: float) -> Heads:
        return Heads(
            [(t[i], t[i + 1], eye) for i in range(0, len(t), 3)],
            False,
            vocab,
            rates,
            None,
            share,
            t[2::3],
        )

    begun = fresh(width, shown.levels, False, shown.seed)
    student = HeadStudent(
        shown,
        [t for weight, bias, _ in begun for t in (weight, bias, shown.table_VH.clone())],
        None,
        make,
    )
    student.normed = True
    return student


KINDS = {
    "medusa": Kind(make_heads(False, False), FromHeads, heads.save),
    "medusa-published": Kind(make_medusa_published, FromHeads, published_medusa.save),
    "hydra": Kind(make_heads(True, False), FromHeads, heads.save),
    "hydra++": Kind(make_heads(True, True), FromHeads, heads.save),
    "hydra++-deep": Kind(make_heads(True, True, 4), FromHeads, heads.save),
    "hydra++-own": Kind(make_heads(True, True, 4, own=True), FromHeads, heads.save),
}
