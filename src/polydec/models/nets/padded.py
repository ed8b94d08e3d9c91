"""A pass as one padded tensor, the way a cache has to lie that knows no ragged rows (EqSpec,
ExSpec).

Every row's old keys and values end at one place, so shorter rows have padding on their left. As
each pass leaves every row with another length, all of them are laid out anew before the next one:
that copy is the price which grouping by length avoids.
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
    """What a network's passes did so far.

    Attributes:
        passes: Passes that held at least two queries.
        rows: Queries of these passes.
        grouped: Passes whose rows had one length, in which nothing is aligned.
        padding: Slots that hold no token.
        moved: Bytes of old keys and values that alignment copied.
        stacked: Bytes that a grouped pass laid side by side.
    """

    passes: int = 0
    rows: int = 0
    grouped: int = 0
    padding: int = 0
    moved: int = 0
    stacked: int = 0


@dataclass(frozen=True, slots=True)
class PaddedAttention:
    """The attention of a pass over B rows of at most M tokens after at most P old entries.

    Attributes:
        qkv: Where a layer's projections stand, ``[T, heads + 2 kv heads, head]``.
        mixed: Where the network reads what attention gathered, ``[T, heads * head]``.
        heads: Numbers of heads, and their width.
        write: Of every layer the cache slots that the fresh entries go to (see `PackedAttention`).
        fresh: Where the fresh keys and values stand, ``[2, kv heads, m, head]`` each.
        row: Of each query its first flat row and its number of tokens.
        place: The padded tensor, ``[2, B, kv heads, P + M, head]``.
        into: The parts of `place` that old and new entries go to; they are the same for every
            layer.
        out: Of every layer the entries that go there.
        query: Scratch for the queries, ``[B, kv heads, group, M, head]``.
        masks: Of every layer what is added to the scores, ``[B, 1, 1, M, P + M]``.
        sinks: Of every layer one more score for each head, which no value answers to; None: there
            are none.
    """

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
        """Cache the fresh keys and values of a layer, lay the batch out, and gather what every row
        sees."""
        torch._foreach_copy_(list(self.write[at]), list(self.fresh))  # pyright: ignore[reportPrivateImportUsage]
        # The fresh entries must be in the caches by now: `out` reads them from there.
        torch._foreach_copy_(list(self.into), list(self.out[at]))  # pyright: ignore[reportPrivateImportUsage]
        heads, (B, KV, g, M, D) = self.heads, self.query.shape
        # [m, KV, g, D] -> [KV, g, m, D]. Rows beyond m keep older numbers, which nobody reads.
        for b, (first, m) in enumerate(self.row):
            asked = self.qkv[first : first + m, : heads.all].view(m, KV, g, D)
            self.query[b, :, :, :m].copy_(asked.permute(1, 2, 0, 3))
        keys, values = self.place
        # The g query heads of a key head lie side by side, so that one product serves all of them.
        scores = self.query.view(B, KV, g * M, D) @ keys.transpose(-1, -2)
        scores = softcap_scores(scores, heads.cap).view(B, KV, g, M, -1).add_(self.masks[at])
        if self.sinks is None:
            sink = None
        else:
            sink = self.sinks[at][None, :, :, None]
        weights = softmax_over(scores, sink)
        gathered = (weights.view(B, KV, g * M, -1) @ values).view(B, KV, g, M, D)
        for b, (first, m) in enumerate(self.row):
            # Back to the flat order [m, KV, g, D]; padding is left out.
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
    """Prepare the attention of a pass of a causal network over one padded tensor.

    It gathers the same as `packing.build_packed_attention`. All views and scratch tensors are made
    here.

    Args:
        p: The pass; its queries are the rows of the batch.
        qkv: Where a layer's projections will stand, ``[T, heads + 2 kv heads, head]``.
        mixed: Where the network looks for what attention gathers, ``[T, heads * head]``.
        heads: Numbers of heads, and their width.
        windows: Of every layer of the network its sliding window in positions; None: it has none.
        sinks: Of the layers that run, one more score for each head, ``[heads]``; None: there are
            none.
        account: Counts padding and copied bytes of this pass; it is changed in place.

    Returns:
        What is called once a layer, with the layer's index among those that run.
    """
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
        # Padding on the left: old entries of all rows end at slot P.
        left = P - q.first
        place_fresh_entries(q, row, qkv, heads, p.layers, fresh, write)
        for at, piece in q.cache.entry_pieces(0, stop):
            into.append(place[:, b, :, left + at : left + at + piece.shape[-2]])
            for i, layer in enumerate(p.layers):
                out[i].append(piece[layer])
    if sinks is None:
        sunk = None
    else:
        sunk = [s.to(like).view(heads.kv, -1) for s in sinks]
    # Layers of one window share a mask.
    seen = {w: _seen(p, w, P, M, like) for w in {windows[i] for i in p.layers}}
    # Bytes of one entry: what a pass reads and writes is counted in entries.
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
    """``[B, 1, 1, M, P + M]``: 0 where a token sees a slot.

    A row that fills up a short draft sees everything: what it gathers is read by nobody, and must
    be a number.
    """
    mask = like.new_full((len(p.queries), M, P + M), masks.NEG_INF)
    for b, (q, row) in enumerate(zip(p.queries, p.begins, strict=True)):
        cache = q.cache
        m = len(q)
        left = P - q.first
        stop = q.first + m
        # Slots below `low` are committed and older than the query: all of its tokens see them.
        low = min(q.first, cache.length)
        own = masks.let_see_each_other(
            masks.tree_attention_mask(
                q.first, stop, cache.length, cache.parent, like.dtype, like.device
            ),
            q.mutual,
        )
        if width is None:
            mask[b, :m, left : left + low] = 0.0
            mask[b, :m, left + low : left + stop] = own
        else:
            position_M = torch.tensor(p.positions[row : row + m], device=like.device)
            slots_S = torch.tensor(depth_slots(cache, stop), device=like.device)
            start, part = masks.sliding_window_mask(width, position_M, low, own, slots_S)
            mask[b, :m, left + start : left + stop] = part
        # A softmax over -inf alone would give NaN.
        mask[b, m:] = 0.0
    return mask[:, None, None]


def _book(
    account: PaddingStats, queries: Sequence[NetworkQuery], P: int, M: int, entry: int
) -> None:
    """Note a pass; entry: bytes of a token's keys and values in all layers."""
    if len(queries) < 2:
        return
    # One query alone is never aligned, and does not count as a batch.
    old = sum(q.first for q in queries)
    account.passes += 1
    account.rows += len(queries)
    account.padding += len(queries) * (P + M) - old - sum(map(len, queries))
    if all(q.first == P for q in queries):
        account.grouped += 1
        account.stacked += old * entry
    else:
        account.moved += old * entry
