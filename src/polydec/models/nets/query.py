"""What a session asks of a network, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from polydec.base.values import fast_dataclass
from polydec.core.types import ScoreRequest


@fast_dataclass(eq=False, slots=True)
class NetworkQuery:
    """Feed `token` (or `embed`, MH) into slots [first, first + M) of `cache`, which has them staged or committed.

    A slot below cache.length sees every slot up to itself; a staged one sees the committed slots, its ancestors and
    itself, and stands at position cache.length + its depth. `rows` (ascending indices into the M) are answered. With
    `layers` (ascending indices), only these run and are written; one that is left out is the identity. Of these, halves in
    `without` are left out as well (2 i: the attention of layer i, which then writes nothing; 2 i + 1: its MLP), never both.
    Of all but the first and the last, `together` consecutive ones form a group whose attentions all read what enters the
    first of them; its MLPs then run one behind another.
    Where earlier layers ran in another pass, `embed` is what enters the first of these. With both `token` and `embed`, the rows
    of `embed` stand in for the tokens that are -1, in order.

    at (ascending): of a network that is not causal, the committed slots that are fed where they are not one run; `first` is
    the lowest.

    adapter: what changes the matrices at those of the M rows that `gated` names, ascending (models/nets/gated.py).
    """

    cache: Any
    first: int
    token: tuple[int, ...]
    rows: Sequence[int]
    want: ScoreRequest
    embed: Tensor | None = None
    layers: tuple[int, ...] | None = None
    without: frozenset[int] = frozenset()
    together: int = 1
    at: tuple[int, ...] | None = None
    adapter: Any = None
    gated: tuple[int, ...] = ()

    @property
    def slots(self) -> Sequence[int]:
        """The slots that are fed, ascending."""
        if self.at is None:
            return range(self.first, self.first + len(self))
        return self.at

    def __len__(self) -> int:
        if self.token or self.embed is None:
            return len(self.token)
        return len(self.embed)

    @property
    def given(self) -> list[int]:
        """Which of the M tokens the rows of `embed` are."""
        if self.embed is None:
            return []
        if self.token:
            return [i for i, x in enumerate(self.token) if x < 0]
        return list(range(len(self.embed)))

    def part(self, start: int, stop: int) -> NetworkQuery:
        """The tokens [start, stop) of it."""
        carried = [k for k, i in enumerate(self.given) if start <= i < stop]
        rows = [r - start for r in self.rows if start <= r < stop]
        if self.embed is None or not carried:
            embed = None
        else:
            embed = self.embed[carried[0] : carried[-1] + 1]
        gated = tuple(i - start for i in self.gated if start <= i < stop)
        return replace(
            self,
            first=self.first + start,
            token=self.token[start:stop],
            rows=rows,
            embed=embed,
            gated=gated,
        )


Run = tuple[tuple[int, ...], frozenset[int], int]
"""The layers that run, those of their halves that do not, and how many attentions read together."""


def group_queries_by_run(
    queries: Sequence[NetworkQuery], every: tuple[int, ...]
) -> dict[Run, list[int]]:
    """Indices of the queries by what they run."""
    by = dict[Run, list[int]]()
    for i, q in enumerate(queries):
        by.setdefault((every if q.layers is None else q.layers, q.without, q.together), []).append(
            i
        )
    return by


@fast_dataclass(eq=False, slots=True)
class NetworkAnswer:
    """logits_RV of the rows asked for (None where want.law is NOTHING); hidden_RH: after the last layer that ran, before the
    final norm, where wanted; exits: the same after each depth of want.exits that this pass reached. A network that finds
    the likeliest tokens itself gives `argmax`, and where no more was wanted `later` instead of logits: what computes them
    after all; and `top`: what finds the k likeliest of each row."""

    logits_RV: Tensor | None
    hidden_RH: Tensor | None = None
    argmax: Sequence[int] | None = None
    later: Callable[[], Tensor] | None = None
    exits: Mapping[int, Tensor] | None = None
    top: Callable[[Tensor, int], list[list[int]]] | None = None


def forward_in_parts(
    forward: Callable[[Sequence[NetworkQuery]], Sequence[NetworkAnswer]],
    queries: Sequence[NetworkQuery],
    limit: int,
) -> Sequence[NetworkAnswer]:
    """The answers of `forward`, which gets no query of more than `limit` tokens: longer ones go in parts, one after another."""
    if all(len(q) <= limit for q in queries):
        return forward(queries)
    parts = [[q.part(i, min(i + limit, len(q))) for i in range(0, len(q), limit)] for q in queries]
    answers = iter(forward([p for pieces in parts for p in pieces]))
    return [_joined([(next(answers), len(p.rows)) for p in pieces]) for pieces in parts]


def in_turns(
    forward: Callable[[Sequence[NetworkQuery]], Sequence[NetworkAnswer]],
    queries: Sequence[NetworkQuery],
    limits: Sequence[int],
) -> Sequence[NetworkAnswer]:
    """The answers of `forward`, which gets no query of more tokens than its limit: longer ones go in parts, each in a call
    behind that of the part before it."""
    parts = [
        [q.part(i, min(i + limit, len(q))) for i in range(0, len(q), limit)]
        for q, limit in zip(queries, limits, strict=True)
    ]
    answers: list[list[tuple[NetworkAnswer, int]]] = [[] for _ in queries]
    for turn in range(max(map(len, parts))):
        now = [k for k, some in enumerate(parts) if turn < len(some)]
        for k, answer in zip(now, forward([parts[k][turn] for k in now]), strict=True):
            answers[k].append((answer, len(parts[k][turn].rows)))
    return [_joined(some) for some in answers]


def _joined(parts: Sequence[tuple[NetworkAnswer, int]]) -> NetworkAnswer:
    answers = [a for a, rows in parts if rows] or [parts[0][0]]
    if len(answers) == 1:
        return answers[0]
    law = all(a.logits_RV is not None for a in answers)
    waits = not law and all(a.logits_RV is not None or a.later is not None for a in answers)
    exits = answers[0].exits and {
        d: torch.cat([a.exits[d] for a in answers if a.exits]) for d in answers[0].exits
    }

    def logits() -> Tensor:
        rows = [a.logits_RV if a.logits_RV is not None else a.later and a.later() for a in answers]
        return torch.cat([r for r in rows if r is not None])

    return NetworkAnswer(
        logits() if law else None,
        None
        if answers[0].hidden_RH is None
        else torch.cat([a.hidden_RH for a in answers if a.hidden_RH is not None]),
        None if answers[0].argmax is None else [x for a in answers for x in a.argmax or ()],
        logits if waits else None,
        exits,
        answers[0].top,
    )


class NeuralNetwork(Protocol):
    """What a session runs on."""

    @property
    def cost(self) -> float: ...
    @property
    def layers(self) -> int: ...
    @property
    def context(self) -> int:
        """The longest sequence, in positions."""
        ...

    @property
    def tree(self) -> bool:
        """Whether several staged children of one entry can be fed in one query (else path by path)."""
        ...

    @property
    def rollback(self) -> bool:
        """Whether a cache can drop its last entries cheaply; asked only where `tree` is False."""
        ...

    @property
    def partial(self) -> bool:
        """Whether layers can run alone."""
        ...

    def head(self, hidden_RH: Tensor) -> Tensor:
        """Logits of states that lie before the final norm. Raises RequestError where the network cannot do that alone."""
        ...

    def normed(self, hidden_RH: Tensor) -> Tensor:
        """States behind the final norm, [n, H]. Raises RequestError where the network cannot do that alone."""
        ...

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer, [n, H]."""
        ...

    def keys(self, cache: Any, stop: int, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer (None: the last one) for a cache's entries below `stop`: see Session.memory. Raises
        RequestError where the network does not show them.
        """
        ...

    @property
    def new_cache(self) -> Callable[..., Any]:
        """Makes an empty cache; where the network says `presses`, a press may be given."""
        ...

    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]: ...
    def __hash__(self) -> int: ...
