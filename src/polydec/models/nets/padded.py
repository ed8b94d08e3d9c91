"""A pass as one padded tensor, the way a cache has to lie that knows no ragged rows (EqSpec, ExSpec).

Every row's old keys and values end at one place, so shorter rows have padding on their left. As each pass leaves every row
with another length, all of them are laid out anew before the next one: that copy is the price which grouping by length avoids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.models.nets import masks
from polydec.models.nets.packing import (
    AttentionHeads,
    PackedPass,
    depth_slots,
    place_fresh_entries,
    softcap_scores,
    softmax_over,
)
from polydec.models.nets.query import NetworkQuery


@dataclass
class PaddingStats:
    """What a network's passes did so far. passes: that held at least two queries; rows: their queries; grouped: passes whose
    rows had one length, in which nothing is aligned; padding: slots that hold no token; moved: bytes of old keys and values
    that alignment copied; stacked: bytes that a grouped pass laid side by side."""

    passes: int = 0
    rows: int = 0
    grouped: int = 0
    padding: int = 0
    moved: int = 0
    stacked: int = 0


@dataclass(frozen=True, slots=True)
class PaddedAttention:
    """The attention of a pass over B rows of at most M tokens behind at most P old entries.

    write, fresh: see `packing.PackedAttention`; row: of each query its first flat row and its
    number of tokens; into and out: of every layer the places in the padded tensor [2, B, kv heads,
    P + M, head], and the old and new entries that go there; mask: of every layer what is added to
    the scores, [B, 1, 1, M, P + M]."""

    qkv: Tensor
    mixed: Tensor
    heads: AttentionHeads
    write: Sequence[Sequence[Tensor]]
    fresh: Sequence[Tensor]
    row: Sequence[tuple[int, int]]
    place: Tensor
    into: Sequence[Tensor]
    out: Sequence[Sequence[Tensor]]
    query: Tensor
    masks: Sequence[Tensor]
    sinks: Sequence[Tensor] | None

    def __call__(self, at: int) -> None:
        """Cache the fresh keys and values of a layer, lay the batch out, and gather what every row sees."""
        torch._foreach_copy_(list(self.write[at]), list(self.fresh))  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_copy_(list(self.into), list(self.out[at]))  # pyright: ignore[reportPrivateImportUsage]
        heads, (B, KV, g, M, D) = self.heads, self.query.shape
        for b, (first, m) in enumerate(self.row):
            asked = self.qkv[first : first + m, : heads.all].view(m, KV, g, D)
            self.query[b, :, :, :m].copy_(asked.permute(1, 2, 0, 3))
        keys, values = self.place
        scores = self.query.view(B, KV, g * M, D) @ keys.transpose(-1, -2)
        scores = softcap_scores(scores, heads.cap).view(B, KV, g, M, -1).add_(self.masks[at])
        if self.sinks is None:
            sink = None
        else:
            sink = self.sinks[at][None, :, :, None]
        weights = softmax_over(scores, sink)
        gathered = (weights.view(B, KV, g * M, -1) @ values).view(B, KV, g, M, D)
        for b, (first, m) in enumerate(self.row):
            seen = gathered[b, :, :, :m].permute(2, 0, 1, 3)
            self.mixed[first : first + m].view(m, KV, g, D).copy_(seen)


def build_padded_attention(
    p: PackedPass,
    qkv: Tensor,
    mixed: Tensor,
    heads: AttentionHeads,
    windows: Sequence[int | None],
    sinks: Sequence[Tensor] | None,
    account: PaddingStats,
) -> PaddedAttention:
    """As `packing.attention` of a causal network, over one padded tensor. The account is told what that took."""
    queries = p.queries
    like = queries[0].cache.kv
    B = len(queries)
    M = max(map(len, queries))
    P = max(q.first for q in queries)
    # What no token fills stays 0 and is hidden.
    place = like.new_zeros(2, B, heads.kv, P + M, heads.width)
    fresh = list[Tensor]()
    write = list[Sequence[Tensor]]()
    into = list[Tensor]()
    out: list[list[Tensor]] = [[] for _ in p.layers]
    for b, (q, row) in enumerate(zip(queries, p.begins, strict=True)):
        stop = q.first + len(q)
        left = P - q.first
        place_fresh_entries(q, row, qkv, heads, p.layers, fresh, write)
        for at, piece in q.cache.pieces(0, stop):
            into.append(place[:, b, :, left + at : left + at + piece.shape[-2]])
            for i, layer in enumerate(p.layers):
                out[i].append(piece[layer])
    if sinks is None:
        sunk = None
    else:
        sunk = [s.to(like).view(heads.kv, -1) for s in sinks]
    seen = {w: _seen(p, w, P, M, like) for w in {windows[i] for i in p.layers}}
    _book(account, queries, P, M, like.nbytes // max(1, like.shape[-2]))
    return PaddedAttention(
        qkv,
        mixed,
        heads,
        list(zip(*write)),
        fresh,
        [(row, len(q)) for q, row in zip(queries, p.begins, strict=True)],
        place,
        into,
        out,
        like.new_zeros(B, heads.kv, heads.group, M, heads.width),
        [seen[windows[i]] for i in p.layers],
        sunk,
    )


def _seen(p: PackedPass, width: int | None, P: int, M: int, like: Tensor) -> Tensor:
    """[B, 1, 1, M, P + M]: 0 where a token sees a slot. A row that fills up a short draft sees everything: what it gathers is
    read by nobody, and must be a number."""
    mask = like.new_full((len(p.queries), M, P + M), masks.NEG_INF)
    for b, (q, row) in enumerate(zip(p.queries, p.begins, strict=True)):
        cache = q.cache
        m = len(q)
        left = P - q.first
        stop = q.first + m
        low = min(q.first, cache.length)
        own = masks.tree_attention_mask(
            q.first, stop, cache.length, cache.parent, like.dtype, like.device
        )
        if width is None:
            mask[b, :m, left : left + low] = 0.0
            mask[b, :m, left + low : left + stop] = own
        else:
            position_M = torch.tensor(p.positions[row : row + m], device=like.device)
            slots_S = torch.tensor(depth_slots(cache, stop), device=like.device)
            start, part = masks.sliding_window_mask(width, position_M, low, own, slots_S)
            mask[b, :m, left + start : left + stop] = part
        mask[b, m:] = 0.0
    return mask[:, None, None]


def _book(
    account: PaddingStats, queries: Sequence[NetworkQuery], P: int, M: int, entry: int
) -> None:
    """Note a pass; entry: bytes of a token's keys and values in all layers."""
    if len(queries) < 2:
        return
    old = sum(q.first for q in queries)
    account.passes += 1
    account.rows += len(queries)
    account.padding += len(queries) * (P + M) - old - sum(map(len, queries))
    if all(q.first == P for q in queries):
        account.grouped += 1
        account.stacked += old * entry
    else:
        account.moved += old * entry
