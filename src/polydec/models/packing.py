"""Many queries of unequal length in one pass: tokens lie flat, attention looks at each query's own cache.

Queries of one pass that run the same layers, feed equally many tokens and see equally many slots form a group, whose
attention is one batched call.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.models import masks
from polydec.models.lm import Query


@dataclass(frozen=True, slots=True)
class Span:
    """One query in the flat batch: rows [row, end), written to slots [first, stop) of its cache.

    write, keys and values: of each layer that runs a view of the cache, [2, kv heads, m, head] and [kv heads, slots,
    head]; where a layer has a sliding window, keys and values begin at the first slot that it leaves visible. mask: for
    each distinct window (first masked column, additive [m, columns]), or None where everything is seen.
    """
    row: int
    end: int
    write: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    mask: Sequence[tuple[int, Tensor] | None]


@dataclass(frozen=True, slots=True)
class Packed:
    """token_T: None where the queries bring embeddings. rows_R: the flat rows that are answered; None: all."""
    queries: Sequence[Query]
    index: Sequence[int]                          # where each query stands in the merge
    layers: range
    positions: list[int]
    rows: list[int]
    spans: list[Span]

    def __len__(self) -> int:
        return len(self.positions)


def passes(queries: Sequence[Query], layers: int, limit: int) -> Iterator[tuple[range, list[int]]]:
    """Indices of the queries that go into one pass together: the same layers, `limit` tokens at most (or one query)."""
    by: dict[range, list[int]] = {}
    for i, q in enumerate(queries):
        by.setdefault(range(layers) if q.layers is None else q.layers, []).append(i)
    for run, members in by.items():
        group, size = list[int](), 0
        for i in members:
            if group and size + len(queries[i]) > limit:
                yield run, group
                group, size = [], 0
            group.append(i)
            size += len(queries[i])
        yield run, group


def pack(queries: Sequence[Query], index: Sequence[int], layers: range, windows: Sequence[int | None],
         causal: bool) -> Packed:
    """Lay the queries out. windows: of every layer its sliding window, None where it sees all."""
    positions, rows, spans = list[int](), list[int](), list[Span]()
    for i in index:
        q, row = queries[i], len(positions)
        m, cache = len(q), queries[i].cache
        stop, length = q.first + m, cache.length
        if length >= stop or masks.is_chain(cache.parent):
            positions += range(q.first, stop)
        else:
            at = [*range(q.first, length), *(length + d for d in masks.depths(cache.parent))]
            skip = max(q.first - length, 0)
            positions += at[skip:skip + m]
        rows += [row + r for r in q.rows]
        spans.append(_span(q, row, positions[row:], layers, windows, causal))
    return Packed([queries[i] for i in index], index, layers, positions, rows, spans)


def _span(q: Query, row: int, position: list[int], layers: range, windows: Sequence[int | None], causal: bool) -> Span:
    m, cache = len(q), q.cache
    kv, stop = cache.kv[layers.start:layers.stop], q.first + m
    seen = None
    if causal and m > 1:
        seen = min(q.first, cache.length), masks.visible(q.first, stop, cache.length, cache.parent, kv.dtype, kv.device)
    elif causal and stop > cache.length + 1 and not masks.is_chain(cache.parent[:stop - cache.length]):
        seen = cache.length, masks.visible(q.first, stop, cache.length, cache.parent, kv.dtype, kv.device)
    used = kv[..., :stop if causal else cache.end, :]
    keys, values = list(used[:, 0].unbind(0)), list(used[:, 1].unbind(0))
    mask: list[tuple[int, Tensor] | None] = [seen] * len(layers)
    made: dict[int, tuple[int, tuple[int, Tensor] | None]] = {}
    for at, i in enumerate(layers):
        width = windows[i]
        if width is None or stop <= width:
            continue
        if width not in made:
            made[width] = _window(q, width, position, seen, kv)
        start, mask[at] = made[width]
        keys[at], values[at] = keys[at][:, start:], values[at][:, start:]
    return Span(row, row + m, kv[..., q.first:stop, :].unbind(0), keys, values, mask)


def _window(q: Query, width: int, position: list[int], seen: tuple[int, Tensor] | None,
            kv: Tensor) -> tuple[int, tuple[int, Tensor] | None]:
    """The first slot that a sliding window leaves visible, and the mask over the slots from there on."""
    m, cache, stop = len(q), q.cache, q.first + len(q)
    if m == 1 and seen is None:
        return stop - width, None
    low, mask = seen or (stop, kv.new_zeros(m, 0))
    slots = [*range(cache.length), *(cache.length + d for d in masks.depths(cache.parent))][:stop]
    start, mask = masks.window(width, torch.tensor(position, device=kv.device), low, mask,
                               torch.tensor(slots, device=kv.device))
    return start, (0, mask)
