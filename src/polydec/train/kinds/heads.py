"""Medusa, Hydra and Hydra++, and Medusa as others publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polydec.core.types import Vocab
from polydec.drafters.heads import FromHeads
from polydec.learned import published_medusa
from polydec.learned.head import fresh
from polydec.learned.kinds import heads
from polydec.learned.kinds.heads import Heads
from polydec.learned.state_layer import StateLayer
from polydec.train.state_layer import Block
from polydec.train.students import HeadStudent, Kind, Rates, Shown, Student


def make_heads(reads: bool, layered: bool) -> Callable[[Shown], Student]:
    def start(shown: Shown) -> Student:
        s = shown.target.s

        def make(
            t: Sequence[Tensor], layer: StateLayer | None, vocab: Vocab, rates: Rates, share: float
        ) -> Heads:
            return Heads(
                [(t[i], t[i + 1], t[i + 2]) for i in range(0, len(t), 3)],
                reads,
                vocab,
                rates,
                layer,
                share,
            )

        tensors = [t for head in fresh(s.width, shown.levels, reads, shown.seed) for t in head]
        return HeadStudent(shown, tensors, Block(s, shown.seed) if layered else None, make)

    return start


def make_medusa_published(shown: Shown) -> Student:
    """In learned/published_medusa.py's layout: a head passes the state on, and its law is the target's, before training."""
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
}
