"""EAGLE, and EAGLE as others publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polydec.core.types import Vocab
from polydec.lab.train.state_layer import Block, PublishedBlock, Stack
from polydec.lab.train.students import UNROLLED, Kind, LayerStudent, Rates, Shown, Student
from polydec.methods.speculative.drafters.eagle import FromEagle
from polydec.models.learned import published_eagle1
from polydec.models.learned.kinds import eagle
from polydec.models.learned.kinds.eagle import Eagle


def make_eagle(published: bool) -> Callable[[Shown], Student]:
    """published: in the layout of models/learned/published_eagle1.py, where embeddings enter as
    they are: they begin half as long as states."""

    def start(shown: Shown) -> Student:
        s, trunk = shown.target.s, shown.target.model
        scale = (
            0.5 * float(trunk.norm.weight.norm() / trunk.embed_tokens.weight.norm(dim=-1).mean())
            if published
            else 1.0
        )

        def make(
            t: Sequence[Tensor], layer: Any, vocab: Vocab, rates: Rates, share: float
        ) -> Eagle:
            return Eagle(t[0], layer, vocab, rates, share, published)

        block = (
            PublishedBlock(s, shown.seed, published_eagle1.layout)
            if published
            else Block(s, shown.seed)
            if shown.layers == 1
            else Stack(s, shown.seed, shown.layers)
        )
        student = LayerStudent(
            shown, [torch.cat([scale * torch.eye(s.width), torch.eye(s.width)], 1)], block, make
        )
        student.normed = published
        return student

    return start


KINDS = {
    "eagle": Kind(make_eagle(False), FromEagle, eagle.save, 1, 1.0, takes=UNROLLED | {"layers"}),
    "eagle-published": Kind(
        make_eagle(True), FromEagle, published_eagle1.save, 1, 10.0, takes=UNROLLED
    ),
}
