"""What a session asks of a network, and what it answers."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from polydec.core.types import Want


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Feed `token` (or `embed`, MH) into slots [first, first + M) of `cache`, which has them staged or committed.

    A slot below cache.length sees every slot up to itself; a staged one sees the committed slots, its ancestors and
    itself, and stands at position cache.length + its depth. `rows` (ascending indices into the M) are answered. With
    `layers` (ascending indices), only these run and are written; one that is left out is the identity. Of these, halves in
    `without` are left out as well (2 i: the attention of layer i, which then writes nothing; 2 i + 1: its MLP), never both.
    Where earlier layers ran in another pass, `embed` is what enters the first of these.
    """
    cache: Any
    first: int
    token: tuple[int, ...]
    rows: Sequence[int]
    want: Want
    embed: Tensor | None = None
    layers: tuple[int, ...] | None = None
    without: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.token) if self.embed is None else len(self.embed)


Run = tuple[tuple[int, ...], frozenset[int]]
"""The layers that run, and those of their halves that do not."""


def groups(queries: Sequence[Query], every: tuple[int, ...]) -> dict[Run, list[int]]:
    """Indices of the queries by what they run."""
    by = dict[Run, list[int]]()
    for i, q in enumerate(queries):
        by.setdefault((every if q.layers is None else q.layers, q.without), []).append(i)
    return by


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
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


class Network(Protocol):
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
        """Whether layers can run alone; then `head` gives the logits of hidden states at any depth."""
        ...

    def head(self, hidden_RH: Tensor) -> Tensor: ...
    def new_cache(self) -> Any: ...
    def forward(self, queries: Sequence[Query]) -> Sequence[Answer]: ...
    def __hash__(self) -> int: ...
