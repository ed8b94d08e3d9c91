"""EAGLE-3, over a head of its own, over one that is kept, and as others publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polydec.core.types import Vocab
from polydec.lab.train.state_layer import Block, NarrowBlock, PublishedBlock
from polydec.lab.train.students import HEADED, Kind, LayerStudent, Rates, Shown, Student
from polydec.methods.speculative.drafters.eagle import FromEagle
from polydec.models.learned import published
from polydec.models.learned.kinds import eagle3, narrow
from polydec.models.learned.kinds.eagle3 import Eagle3
from polydec.models.learned.published import layout
from polydec.models.learned.state_layer import Vocabulary


def depths_of(layers: int) -> tuple[int, ...]:
    """After which layers EAGLE-3 reads the states: a low, a middle and a high one, as far as there are so many."""
    return tuple(sorted({max(1, layers // 4), max(1, layers // 2), max(1, layers - 1)}))


def quarters_of(layers: int) -> tuple[int, ...]:
    """After each quarter of the layers."""
    return tuple(sorted({max(1, n * layers // 4) for n in range(1, 5)}))


def make_eagle3(published: bool) -> Callable[[Shown], Student]:
    """published: in the layout of models/learned/published.py."""

    def start(shown: Shown) -> Student:
        s, depths = shown.target.s, depths_of(shown.target.s.layers)

        def make(
            t: Sequence[Tensor], layer: Any, vocab: Vocab, rates: Rates, share: float
        ) -> Eagle3:
            return Eagle3(
                t[0],
                depths,
                layer,
                Vocabulary(shown.tokens, t[1], t[2]),
                vocab,
                rates,
                share,
                not published,
            )

        tensors = [
            torch.eye(s.width).repeat(1, len(depths)) / len(depths),
            shown.table_VH[shown.tokens].clone(),
            shown.target.model.norm.weight.detach().clone(),
        ]
        block = (
            PublishedBlock(s, shown.seed, layout)
            if published
            else Block(s, shown.seed, 2 * s.width)
        )
        student = LayerStudent(shown, tensors, block, make)
        student.columns = shown.tokens
        return student

    return start


def make_narrow(shown: Shown) -> Student:
    """EAGLE-3 of the target's width, over a head that stays as it is: that of the draft model that it begins as, else the
    target's rows."""
    s, depths, begin = shown.target.s, quarters_of(shown.target.s.layers), shown.begin
    trunk = shown.target.model
    head_CH, norm_H = (
        trunk.embed_tokens.weight[shown.tokens].clone(),
        trunk.norm.weight.detach().clone(),
    )
    scale = float(head_CH.square().mean(-1).sqrt().mean())
    if begin is not None:
        head_CH, norm_H = narrow.head_of(begin, shown.tokens), begin["model.norm.weight"].float()

    def make(t: Sequence[Tensor], layer: Any, vocab: Vocab, rates: Rates, share: float) -> Eagle3:
        return Eagle3(
            t[0], depths, layer, Vocabulary(shown.tokens, head_CH, t[1]), vocab, rates, share
        )

    fuse = torch.eye(s.width).repeat(1, len(depths)) / len(depths)
    student = LayerStudent(shown, [fuse, norm_H], NarrowBlock(s, shown.seed, begin, scale), make)
    student.columns = shown.tokens
    return student


KINDS = {
    "eagle-3": Kind(make_eagle3(False), FromEagle, eagle3.save, 4, depths=depths_of, takes=HEADED),
    "eagle-3-narrow": Kind(
        make_narrow, FromEagle, narrow.save_trained, 4, depths=quarters_of, takes=HEADED | {"start"}
    ),
    "eagle-3-published": Kind(
        make_eagle3(True), FromEagle, published.save, 4, depths=depths_of, takes=HEADED
    ),
}
