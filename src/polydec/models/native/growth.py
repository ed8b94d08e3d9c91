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
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import NOT_FINITE

WIDE = 64
DEEP = 64
MOST = 4096
"""Paths of a level, levels and nodes of a tree, at most."""
READ = 64
"""True states that a call reads before it grows a tree; more are fed as a prompt is, in parts."""


def add_native_matrix(step: CpuStep, part: str, weight_NK: Tensor) -> Callable[[Tensor], Tensor]:
    """Give the library one more matrix, stored in 8 bits.

    Args:
        step: The network that gets it.
        part: "join" or "fuse"; "join" must be given first.
        weight_NK: The matrix, ``[out, in]``.

    Returns:
        A function that multiplies rows by it, ``[M, in]`` -> ``[M, out]``.

    Raises:
        MissingError: Its shape does not fit the network's.
    """
    weight_NK = weight_NK.detach()
    item = NativeWeight(q8_0(weight_NK), tuple(weight_NK.shape), TYPES["Q8_0"])
    # The library copies and packs the blocks.
    step._check(step._put(PARTS[part], 0, item))

    def through_matrix(rows_MK: Tensor) -> Tensor:
        # The library takes a limited number of rows a call.
        return torch.cat(
            [_through(step, part, len(weight_NK), part_MK) for part_MK in rows_MK.split(LIMIT)]
        )

    return through_matrix


def _through(step: CpuStep, part: str, width: int, rows_MK: Tensor) -> Tensor:
    # The library reads plain fp32 memory, whose rows lie one behind another.
    input_MK = rows_MK.float().contiguous()
    out = torch.empty(len(rows_MK), width)
    # An empty tensor may have no address.
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
    """Rows divided by their root mean squares, with the same bits as those of a tree that grows."""
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
    # A number that is not finite: the same message as on the torch path.
    if code == ENDLESS:
        raise MissingError(NOT_FINITE)
    step._check(code)


@dataclass(frozen=True, slots=True, eq=False)
class TipState:
    """What a layer made of the last true state.

    Attributes:
        state_H: What left the layer.
        logits_C: Its head's logits of its own tokens.
    """

    state_H: Tensor
    logits_C: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TreeGrowthQuery:
    """A tree that is asked for.

    Attributes:
        cache: The layer's cache, whose entries after the committed ones are free.
        embed_NH: Embeddings of the tokens after the true states that are read first.
        state_ND: These true states, of all their layers side by side.
        tip: What the layer made of the last true state, where none is read; else None.
        depth: Levels of the tree.
        width: Children that a path may get at each level.
        tips: Paths that go on at each level.
        nodes: Nodes of the tree.
        floor: No path less likely is named. Default 0.
    """

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
    """A grown tree.

    Attributes:
        tip: What the layer made of the last true state; those that were read stay in the cache.
        nodes: Of each node the node above it (-1: the root), its token and its chance, level by
            level.
    """

    tip: TipState
    nodes: tuple[tuple[int, int, float], ...]


class NativeTreeGrower:
    """A model to which a query is a full tree.

    What enters the layer, what leaves it and its head's logits have the same bits as those of
    passes level by level. A chance does not: its logarithm lies within 1e-6, and 2^-24 of itself,
    of the exact one, and torch, which adds in another order, has an error of its own. So a tree
    differs from `BestFirstTree`'s only where two paths are as likely as that; of equal logits the first
    token counts as the likelier one here, any of them with torch.

    Args:
        step: The layer with its head.
        fuse_HD: The matrix that joins the states of several layers, ``[H, layers * H]``.
        token_C: The ids that its head knows.
        table: Gives their embeddings, ``[C, H]``; it is asked once.
    """

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

    def answer_tip(self, answer: NetworkAnswer) -> TipState:
        """The tip of what the layer answered at its last row."""
        assert answer.hidden_RH is not None and answer.logits_RV is not None
        return TipState(answer.hidden_RH[-1].clone(), answer.logits_RV[-1, self._token_C])

    def answer_of_tip(self, tip: TipState) -> NetworkAnswer:
        """The answer of a pass whose last row is a tip."""
        return NetworkAnswer(self._step._full(tip.logits_C[None]), tip.state_H[None])

    def even_rows(self, rows_MH: Tensor) -> Tensor:
        """Rows divided by their root mean squares."""
        return _evened(self._step, rows_MH)

    def forward(self, queries: Sequence[TreeGrowthQuery]) -> Sequence[TreeGrowthAnswer]:
        """Grow one tree a query, in order."""
        return [self._grow(q) for q in queries]

    def _grow(self, q: TreeGrowthQuery) -> TreeGrowthAnswer:
        step = self._step
        n = len(q)
        cache = q.cache
        length = cache.length
        # Slots for the true states, and for the paths of every level but the last, whose entries
        # nobody reads.
        room = n + q.tips * (q.depth - 1)
        cache.stage_slots([-1] * room)
        step._turn(length + n + q.depth - 1)
        # The library writes into the cache and reads the tables where they lie.
        where = CacheOf()
        parts = cache_of(where, cache)  # noqa: F841   (kept while the call runs)
        # Embeddings of the head's tokens, so that levels follow one another without leaving the
        # library.
        table_CH = self._table()
        # A new path has room for its tip, which the call fills.
        if q.tip is None:
            tip = TipState(torch.empty(self._width), torch.empty(len(self._id)))
        else:
            tip = q.tip
        embed_NH = q.embed_NH.float().contiguous()
        state_ND = q.state_ND.float().contiguous()
        token = np.empty(q.nodes, np.int32)
        parent = np.empty(q.nodes, np.int32)
        chance = np.empty(q.nodes, np.float64)
        # Fields in the order of the C record.
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
        # True states stay cached; what the tree's own nodes left does not.
        cache.commit_path(range(n) if not code else ())
        _check(step, code)
        # The library counts tokens of the layer's own head; here they become ids of the vocabulary.
        ids = [self._id[x] for x in token[: g.found].tolist()]
        return TreeGrowthAnswer(
            tip, tuple(zip(parent[: g.found].tolist(), ids, chance[: g.found].tolist()))
        )
