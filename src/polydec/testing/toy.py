"""Tiny laws with a cache that behaves like a real one: every law is known, and every slip of the cache shows."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from polydec.core.types import Reads, Vocab
from polydec.models.lm import LM, Answer, Query


class TextCache:
    """A cache whose entries hold the whole text that led to them, with the verbs of polydec.models.cache.Cache."""
    def __init__(self) -> None:
        self.text: list[tuple[int, ...] | None] = []
        self.length = 0
        self.parent: list[int] = []

    @property
    def end(self) -> int:
        return self.length + len(self.parent)

    def stage(self, parent: Sequence[int]) -> int:
        first = self.end
        self.parent += parent
        self.text += [None] * len(parent)
        return first

    def commit(self, path: Sequence[int]) -> None:
        self.text[self.length:] = [self.text[self.length + j] for j in path]
        self.length, self.parent = len(self.text), []

    def truncate(self, length: int) -> None:
        del self.text[length:]
        self.length, self.parent = length, []

    def fork(self) -> TextCache:
        twin = TextCache()
        twin.text, twin.length, twin.parent = list(self.text), self.length, list(self.parent)
        return twin

    @property
    def nbytes(self) -> int:
        return 8 * len(self.text)


class Table:
    """An order-2 law: the next token depends on the last two. Float64. `cost` orders it in the scheduler."""
    layers, context, partial, rollback = 1, 1 << 20, False, True

    def __init__(self, seed: int, size: int = 3, sharp: float = 1.2, *, cost: float = 1.0, tree: bool = True) -> None:
        g = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(size + 1, size + 1, size, generator=g, dtype=torch.float64) * sharp
        self.size, self.cost, self.tree = size, cost, tree

    def new_cache(self) -> TextCache:
        return TextCache()

    def forward(self, queries: Sequence[Query]) -> list[Answer]:
        return [self._answer(q) for q in queries]

    def _answer(self, q: Query) -> Answer:
        cache = q.cache
        for slot, x in enumerate(q.token, q.first):
            if slot <= cache.length:              # committed entries and the first staged one follow the last slot
                before = slot - 1
            if slot >= cache.length:
                p = cache.parent[slot - cache.length]
                before = cache.length + p
            text = cache.text[before] if before >= 0 else ()
            assert text is not None, "an entry was read before it was fed"
            cache.text[slot] = (*text, x)
        if q.want.law is Reads.NOTHING or not len(q.rows):
            return Answer(torch.empty(0, self.size, dtype=torch.float64))
        texts = [cache.text[q.first + r] for r in q.rows]
        return Answer(torch.stack([self.weight[t[-2] if len(t) > 1 else self.size, t[-1]] for t in texts]))


def toy(seed: int, size: int = 3, *, eos: int | None = None, sharp: float = 1.2, cost: float = 1.0, tree: bool = True,
        chunk: int = 2) -> LM:
    """A random law over `size` tokens, the last one being EOS unless `eos` says which; logits spread by `sharp`."""
    ends = frozenset({size - 1 if eos is None else eos})
    return LM(Table(seed, size, sharp, cost=cost, tree=tree), Vocab(size, ends), chunk=chunk)
