"""A drafter's layer in the compiled step: what makes its rows, and trees that it grows in one call
(models/native/growth.cpp)."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polydec.base.errors import MissingError
from polydec.models.native.library import ENDLESS, PARTS, TYPES, CacheOf, NativeTreeGrowth
from polydec.models.native.network import LIMIT, CpuStep, cache_of
from polydec.models.native.weights import NativeWeight, q8_0
from polydec.models.nets.cache import KVCache
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import NOT_FINITE

WIDE = 64
DEEP = 64
MOST = 4096
"""Paths of a level, levels and nodes of a tree, at most."""
READ = 64
"""True states that a call reads before it grows a tree; more are fed as a prompt is, in parts."""


def add_native_matrix(step: CpuStep, part: str, weight_NK: Tensor) -> Callable[[Tensor], Tensor]:
    """One more matrix of a network, stored in 8 bits: "join" first, then "fuse". Gives what multiplies rows by it. Raises
    MissingError where its shape does not fit the network's."""
    weight_NK = weight_NK.detach()
    item = NativeWeight(q8_0(weight_NK), tuple(weight_NK.shape), TYPES["Q8_0"])
    step._check(step._put(PARTS[part], 0, item))

    def through(rows_MK: Tensor) -> Tensor:
        return torch.cat(
            [_through(step, part, len(weight_NK), part_MK) for part_MK in rows_MK.split(LIMIT)]
        )

    return through


def _through(step: CpuStep, part: str, width: int, rows_MK: Tensor) -> Tensor:
    input_MK = rows_MK.float().contiguous()
    out = torch.empty(len(rows_MK), width)
    if len(input_MK):
        _check(
            step,
            step._lib.step_through(
                step._model,
                PARTS[part],
                len(input_MK),
                input_MK.data_ptr(),
                input_MK.numel(),
                out.data_ptr(),
                out.numel(),
            ),
        )
    return out


def _evened(step: CpuStep, rows_MH: Tensor) -> Tensor:
    """Rows divided by their root mean squares, to the bit as those of a tree that grows."""
    input_MH = rows_MH.float().contiguous()
    out = torch.empty(rows_MH.shape)
    if len(input_MH):
        _check(
            step,
            step._lib.step_even(
                step._model,
                len(input_MH),
                input_MH.data_ptr(),
                input_MH.numel(),
                out.data_ptr(),
                out.numel(),
            ),
        )
    return out


def _check(step: CpuStep, code: int) -> None:
    if code == ENDLESS:
        raise MissingError(NOT_FINITE)
    step._check(code)


@dataclass(frozen=True, slots=True, eq=False)
class TipState:
    """What a layer made of the last true state: state_H, and its head's logits of its own tokens, logits_C."""

    state_H: Tensor
    logits_C: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TreeGrowthQuery:
    """A tree that is asked for. The layer's cache, whose entries behind the committed ones are free; the true states that it
    reads first, side by side, and the embeddings of the tokens behind them; the tip, where there are none; and the tree: see
    BestFirst. tips: paths that go on at each level; floor: no path less likely is named."""

    cache: KVCache
    embed_NH: Tensor
    state_ND: Tensor
    tip: TipState | None
    depth: int
    width: int
    tips: int
    nodes: int
    floor: float = 0.0

    def __len__(self) -> int:
        return len(self.embed_NH)


@dataclass(frozen=True, slots=True, eq=False)
class TreeGrowthAnswer:
    """tip: behind the true states that were read, which stay in the cache; nodes: (the node above it, -1: the root; token; its
    chance), level by level."""

    tip: TipState
    nodes: tuple[tuple[int, int, float], ...]


class NativeTreeGrower:
    """A model to which a query is a whole tree. step: the layer with its head; token_C: the ids that its head knows; table:
    their embeddings, [C, H], asked for once.

    What enters the layer, what leaves it and its head's logits are to the bit those of passes level by level. A chance is not:
    its logarithm lies within 1e-6, and 2^-24 of itself, of the exact one, and torch, which adds in another order, has an error
    of its own. So a tree differs from BestFirst's only where two paths are as likely as that; of equal logits the first
    token counts as the likelier one here, any of them with torch."""

    def __init__(
        self, step: CpuStep, fuse_HD: Tensor, token_C: Tensor, table: Callable[[], Tensor]
    ) -> None:
        self._step = step
        self.fused = add_native_matrix(step, "fuse", fuse_HD)
        self._states = fuse_HD.shape[1] // len(fuse_HD)
        self._width = len(fuse_HD)
        self.cost = step.cost
        self._id = token_C.tolist()
        self._token_C = token_C
        self._make = table
        self._table_CH = None

    def _table(self) -> Tensor:
        if self._table_CH is None:
            self._table_CH = self._make().float().contiguous()
        return self._table_CH

    def tip(self, answer: NetworkAnswer) -> TipState:
        """Of what the layer answered at one row."""
        assert answer.hidden_RH is not None and answer.logits_RV is not None
        return TipState(answer.hidden_RH[-1].clone(), answer.logits_RV[-1, self._token_C])

    def answer(self, tip: TipState) -> NetworkAnswer:
        """The same the other way about."""
        return NetworkAnswer(self._step._full(tip.logits_C[None]), tip.state_H[None])

    def even(self, rows_MH: Tensor) -> Tensor:
        """Rows divided by their root mean squares."""
        return _evened(self._step, rows_MH)

    def forward(self, queries: Sequence[TreeGrowthQuery]) -> Sequence[TreeGrowthAnswer]:
        return [self._grow(q) for q in queries]

    def _grow(self, q: TreeGrowthQuery) -> TreeGrowthAnswer:
        step = self._step
        n = len(q)
        cache = q.cache
        length = cache.length
        room = n + q.tips * (q.depth - 1)
        cache.stage([-1] * room)
        step._turn(length + n + q.depth - 1)
        where = CacheOf()
        parts = cache_of(where, cache)  # noqa: F841   (kept while the call runs)
        table_CH = self._table()
        if q.tip is None:
            tip = TipState(torch.empty(self._width), torch.empty(len(self._id)))
        else:
            tip = q.tip
        embed_NH = q.embed_NH.float().contiguous()
        state_ND = q.state_ND.float().contiguous()
        token = np.empty(q.nodes, np.int32)
        parent = np.empty(q.nodes, np.int32)
        chance = np.empty(q.nodes, np.float64)
        g = NativeTreeGrowth(
            C.addressof(where),
            length,
            n,
            self._states,
            q.depth,
            min(q.width, len(self._id)),
            q.tips,
            q.nodes,
            0,
            q.floor,
            embed_NH.data_ptr(),
            state_ND.data_ptr(),
            table_CH.data_ptr(),
            tip.state_H.data_ptr(),
            tip.logits_C.data_ptr(),
            token.ctypes.data,
            parent.ctypes.data,
            chance.ctypes.data,
        )
        code = step._lib.step_grow(step._model, C.byref(g))
        cache.commit(range(n) if not code else ())
        _check(step, code)
        ids = [self._id[x] for x in token[: g.found].tolist()]
        return TreeGrowthAnswer(
            tip, tuple(zip(parent[: g.found].tolist(), ids, chance[: g.found].tolist()))
        )
