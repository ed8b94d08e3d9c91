"""What a session asks of a network, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from polydec.base.values import fast_dataclass
from polydec.core.types import ScoreRequest


@fast_dataclass(eq=False, slots=True)
class NetworkQuery:
    """Feed `token` (or `embed`, MH) into slots ``[first, first + M)`` of `cache`, which has them
    staged or committed.

    A slot below cache.length sees every slot up to itself; a staged one sees the committed slots,
    its ancestors and itself, and stands at position cache.length + its depth.

    Attributes:
        cache: The cache of the sequence, of the network's own kind.
        first: First slot that is fed.
        token: Token ids, ``[M]``. With `embed` as well, -1 where a row of `embed` stands.
        rows: Ascending indices into the M tokens, which are answered.
        want: What is read of the answer; nothing else need be computed.
        embed: Vectors instead of tokens, ``[M, H]``; with `token` as well, those of the tokens that
            are -1, in order. Where earlier layers ran in another pass, it is what enters the first
            of `layers`.
        layers: Ascending indices of the layers that run and are written; one that is left out is
            the identity. None: all.
        without: Halves of these layers that are left out as well (2 i: the attention of layer i,
            which then writes nothing; 2 i + 1: its MLP), never both of one layer.
        together: Of all layers but the first and the last, so many consecutive ones form a group
            whose attentions all read what enters the first of them; its MLPs then run one after
            another.
        at: Ascending; of a network that is not causal, the committed slots that are fed where they
            are not one run. `first` is then the lowest. None: they are one run.
        gated: Each adapter that changes the matrices at some rows (models/nets/gated.py), with the
            ascending indices of those of the M rows.
        mutual: The last so many of the M tokens, which are staged in a row, see one another, those
            behind them too. 0: none does.
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
    gated: tuple[tuple[Any, tuple[int, ...]], ...] = ()
    mutual: int = 0

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
        # Tokens of -1 are the places of the vectors; without tokens all places are.
        if self.token:
            return [i for i, x in enumerate(self.token) if x < 0]
        return list(range(len(self.embed)))

    def cut_query(self, start: int, stop: int) -> NetworkQuery:
        """Cut a query to some of its tokens, in the same cache.

        Args:
            start: Index of the first token that stays.
            stop: Index after the last token that stays.

        Returns:
            The query of the tokens ``[start, stop)``; it answers those of the rows that lie among
            them.
        """
        # Rows of `embed` that fall into the part are consecutive, since both are in order.
        carried = [k for k, i in enumerate(self.given) if start <= i < stop]
        rows = [r - start for r in self.rows if start <= r < stop]
        if self.embed is None or not carried:
            embed = None
        else:
            embed = self.embed[carried[0] : carried[-1] + 1]
        gated = tuple(
            (adapter, tuple(i - start for i in changed if start <= i < stop))
            for adapter, changed in self.gated
        )
        return replace(
            self,
            first=self.first + start,
            token=self.token[start:stop],
            rows=rows,
            embed=embed,
            gated=gated,
            # Those that see one another are the last ones, and are never parted.
            mutual=self.mutual if stop >= len(self) else 0,
        )

    def part_edges(self, limit: int) -> list[int]:
        """Where the query is cut into parts of at most so many tokens; those that see one another
        stay together, however many they are."""
        # All before them may be parted anywhere.
        free = len(self) - self.mutual
        return [*range(0, free, limit), *([free] if self.mutual else ()), len(self)]


Run = tuple[tuple[int, ...], frozenset[int], int]
"""The layers that run, those of their halves that do not, and how many attentions read together."""


def group_queries_by_run(
    queries: Sequence[NetworkQuery], every: tuple[int, ...]
) -> dict[Run, list[int]]:
    """Group queries by which layers, and which halves of them, they run.

    Args:
        queries: The queries of a call.
        every: All layers, which a query without `layers` runs.

    Returns:
        For each run, in order of first appearance, the indices of its queries, ascending.
    """
    by = dict[Run, list[int]]()
    for i, q in enumerate(queries):
        by.setdefault((every if q.layers is None else q.layers, q.without, q.together), []).append(
            i
        )
    return by


@fast_dataclass(eq=False, slots=True)
class NetworkAnswer:
    """What a network computed for the answered rows of a query.

    Attributes:
        logits_RV: Logits of the rows; None where want.law is NOTHING.
        hidden_RH: States after the last layer that ran, before the final norm; None where they are
            not wanted.
        argmax: The likeliest token of each row, from a network that finds it itself; else None.
        later: Computes the logits after all, from a network that gave `argmax` where no more was
            wanted; else None.
        exits: The states after each depth of want.exits that this pass reached.
        top: Finds the k likeliest tokens of each row of logits, faster than torch does; None: torch
            is asked.
    """

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
    """Answer queries with a function that takes no more than so many tokens a query.

    Longer queries go in parts. All parts go into one call, each after the part before it.

    Args:
        forward: Answers queries in order; it must feed them in this order.
        queries: The queries, of any length.
        limit: Tokens of the longest query that `forward` gets, 1 or more.

    Returns:
        One answer a query, in order; answers of parts are joined.
    """
    if all(len(q) <= limit for q in queries):
        return forward(queries)
    parts = [[q.cut_query(i, j) for i, j in pairwise(q.part_edges(limit))] for q in queries]
    # One call: parts of a query stand one after another, so each finds the entries of the part
    # before it in the cache.
    answers = iter(forward([p for pieces in parts for p in pieces]))
    return [_joined([(next(answers), len(p.rows)) for p in pieces]) for pieces in parts]


def in_turns(
    forward: Callable[[Sequence[NetworkQuery]], Sequence[NetworkAnswer]],
    queries: Sequence[NetworkQuery],
    limits: Sequence[int],
) -> Sequence[NetworkAnswer]:
    """Answer queries with a function that takes a limited number of tokens, in several calls.

    Each part of a long query goes in a call of its own, after the call of the part before it.

    Args:
        forward: Answers queries in order. It may feed the queries of one call at once.
        queries: The queries, of any length; at least one.
        limits: Of each query the tokens of its longest part, 1 or more.

    Returns:
        One answer a query, in order; answers of parts are joined.
    """
    parts = [
        [q.cut_query(i, min(i + limit, len(q))) for i in range(0, len(q), limit)]
        for q, limit in zip(queries, limits, strict=True)
    ]
    answers: list[list[tuple[NetworkAnswer, int]]] = [[] for _ in queries]
    # Call number `turn` has the part of that number of each query.
    for turn in range(max(map(len, parts))):
        # Of each query that still has one, the next part.
        now = [k for k, some in enumerate(parts) if turn < len(some)]
        for k, answer in zip(now, forward([parts[k][turn] for k in now]), strict=True):
            answers[k].append((answer, len(parts[k][turn].rows)))
    return [_joined(some) for some in answers]


def _joined(parts: Sequence[tuple[NetworkAnswer, int]]) -> NetworkAnswer:
    # Parts without an answered row have nothing to join; where no part has one, any stands for the
    # query.
    answers = [a for a, rows in parts if rows] or [parts[0][0]]
    if len(answers) == 1:
        return answers[0]
    law = all(a.logits_RV is not None for a in answers)
    # If some parts have no logits yet, the joined ones are computed when somebody looks.
    waits = not law and all(a.logits_RV is not None or a.later is not None for a in answers)
    # All parts reached the same depths, as they are one query.
    exits = answers[0].exits and {
        d: torch.cat([a.exits[d] for a in answers if a.exits]) for d in answers[0].exits
    }

    def joined_logits() -> Tensor:
        # Parts that have logits give them, the others compute theirs now.
        rows = [a.logits_RV if a.logits_RV is not None else a.later and a.later() for a in answers]
        return torch.cat([r for r in rows if r is not None])

    return NetworkAnswer(
        joined_logits() if law else None,
        None
        if answers[0].hidden_RH is None
        else torch.cat([a.hidden_RH for a in answers if a.hidden_RH is not None]),
        None if answers[0].argmax is None else [x for a in answers for x in a.argmax or ()],
        joined_logits if waits else None,
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

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        """Compute logits of states that lie before the final norm.

        Args:
            hidden_RH: States, as `NetworkAnswer.hidden_RH` has them.

        Returns:
            Logits, ``[R, V]``.

        Raises:
            RequestError: The network cannot do that alone.
        """
        ...

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        """States behind the final norm, [n, H]. Raises RequestError where the network cannot do
        that alone."""
        ...

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer, [n, H]."""
        ...

    def read_keys(self, cache: Any, stop: int, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Read keys and values that a cache holds: see Session.layer_memory.

        Args:
            cache: A cache of this network.
            stop: Number of entries to read, from the first one on.
            layer: Index of the layer; None: the last one.

        Returns:
            Keys and values, each ``[kv heads, stop, head]``.

        Raises:
            RequestError: The network does not show them.
        """
        ...

    @property
    def new_cache(self) -> Callable[..., Any]:
        """Makes an empty cache; where the network says `presses`, a press may be given."""
        ...

    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]: ...
    def __hash__(self) -> int: ...
