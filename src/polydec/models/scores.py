"""The laws of a model at the nodes of a draft, from its logits."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polydec.core.law import normalise
from polydec.models.query import Answer


class LogitScores:
    """Scores of a model, over the logits of one or several passes. exits: hidden states at a depth of some nodes, and the
    network's head for them."""
    __slots__ = ("_argmax", "_at", "_chunks", "_exits", "_hidden", "_later", "_logp", "_top", "_waiting")

    def __init__(self, answers: Sequence[Answer], exits: Exits | None = None) -> None:
        self._exits = exits
        self._waiting: list[Any] = []             # states of exits, or (their logits,)
        laws = [a for a in answers if a.logits_RV is not None or a.later is not None]
        self._chunks, self._later = [a.logits_RV for a in laws], [a.later for a in laws]
        self._argmax: list[Sequence[int] | None] = [a.argmax for a in laws]
        sizes = [rows_of(a) for a in laws]
        self._at = [(c, r) for c, size in enumerate(sizes) for r in range(size)]
        self._hidden = [a.hidden_RH for a in answers if a.hidden_RH is not None]
        self._logp: dict[int, Tensor] = {}
        self._top = laws[0].top if laws else None

    def _logits(self, chunk: int) -> Tensor:
        if self._chunks[chunk] is None:
            self._chunks[chunk] = self._later[chunk]()
        return self._chunks[chunk]

    def weights(self, i: int) -> Tensor:
        chunk, row = self._at[i]
        return self._logits(chunk)[row]

    def row(self, i: int) -> Tensor:
        if i not in self._logp:
            w_V = self.weights(i)
            self._logp[i] = normalise(w_V if w_V.dtype == torch.float64 else w_V.float())
        return self._logp[i]

    def certain(self, i: int) -> int | None:
        return None

    def argmax(self, i: int) -> int:
        chunk, row = self._at[i]
        if self._argmax[chunk] is None:
            self._argmax[chunk] = self._logits(chunk).argmax(-1).tolist()
        return self._argmax[chunk][row]

    def topk(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        row_V = self.row(i)
        value_K, token_K = row_V.topk(min(k, len(row_V)))
        return tuple(token_K.tolist()), tuple(value_K.tolist())

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        """Of many rows the k likeliest tokens: the vectorised twin of `topk`, without log-probabilities."""
        k = min(k, self._logits(0).shape[-1])
        if len(self._chunks) == 1 and list(rows) == list(range(len(self._at))):
            return self._top(self._logits(0), k) if self._top else self._logits(0).topk(k, dim=-1).indices.tolist()
        return [self.weights(i).topk(k).indices.tolist() for i in rows]

    def logp(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        row_V = self.row(i)
        return tuple(float(row_V[x]) for x in tokens)

    @property
    def hidden_NH(self) -> Tensor | None:
        return torch.cat(self._hidden) if self._hidden else None

    def exit(self, depth: int, nodes: Sequence[int]) -> LogitScores:
        if self._exits is None:
            raise ValueError(f"depth is {depth}: no exit was wanted of this score (Want.exits)")
        states, head = self._exits
        hidden_RH, mine, waiting = states(depth, nodes), len(self._waiting), self._waiting
        waiting.append(hidden_RH)

        def later() -> Tensor:                    # one product for all exits that were asked for before one was looked at
            if isinstance(waiting[mine], Tensor):
                todo = [i for i, t in enumerate(waiting) if isinstance(t, Tensor)]
                done = head(torch.cat([waiting[i] for i in todo])).split([len(waiting[i]) for i in todo])
                for i, logits_RV in zip(todo, done):
                    waiting[i] = (logits_RV,)
            return waiting[mine][0]
        return LogitScores([Answer(None, hidden_RH, later=later)])

    @property
    def base(self) -> LogitScores:
        return self


Exits = tuple[Callable[[int, Sequence[int]], Tensor], Callable[[Tensor], Tensor]]
"""(hidden states of some nodes at a depth, logits of hidden states)"""


def rows_of(a: Answer) -> int:
    return len(next(t for t in (a.logits_RV, a.argmax, a.hidden_RH) if t is not None))


def exits_of(answers: Sequence[Answer], head: Callable[[Tensor], Tensor]) -> Exits:
    """The exits of rows that whole passes answered."""
    def states(depth: int, nodes: Sequence[int]) -> Tensor:
        return torch.cat([a.exits[depth] for a in answers if a.exits is not None])[list(nodes)]
    return states, head
