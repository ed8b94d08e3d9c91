"""Many queries of unequal length in one pass: tokens lie flat, attention looks at each query's own
cache.

All views and scratch tensors of a pass are made before its first layer: what runs once a layer is
nothing but kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from polydec.models.formats.superlinear import SuperlinearRule
from polydec.models.nets import masks
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.press import Chunk, LowRankEntries, view_pressed_cache
from polydec.models.nets.query import NetworkQuery, Run, group_queries_by_run
from polydec.models.nets.superlinear import SearchPlaces, SuperlinearAttention

LONG = 32  # rows from which attention over blocks beats plain products


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """How queries share keys and values.

    Attributes:
        all: Number of query heads.
        kv: Number of key and value heads.
        width: Size of a head.
        cap: Bound that scores approach by tanh; None: they are as they are.
    """

    all: int
    kv: int
    width: int
    cap: float | None = None

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.all // self.kv


@dataclass(frozen=True, slots=True)
class AttentionReach:
    """What one query sees in layers of one window.

    Attributes:
        start: The first slot that is read.
        scores: Scratch for scores; None: attention is computed over blocks.
        masked: The part of `scores` that is masked.
        mask: What is added there; None: everything is seen.
    """

    start: int
    scores: Tensor | None
    masked: Tensor | None
    mask: Tensor | None


def softcap_scores(scores: Tensor, cap: float | None) -> Tensor:
    """Bound scores smoothly: cap * tanh(score / cap), in place.

    Args:
        scores: Attention scores; they are changed.
        cap: The bound, above 0; None: scores stay as they are.

    Returns:
        The same tensor.
    """
    if cap is None:
        return scores
    return scores.div_(cap).tanh_().mul_(cap)


def softmax_over(scores: Tensor, sink: Tensor | None) -> Tensor:
    """The softmax of scores, with an attention sink if there is one.

    Args:
        scores: Scores, ``[..., slots]``.
        sink: One more score for each row, ``[...]``, which takes its part of the weight and has no
            value; None: there is none.

    Returns:
        Weights of the slots; with a sink they sum to less than 1.
    """
    if sink is None:
        return torch.softmax(scores, -1)
    return torch.softmax(
        torch.cat([scores, sink[..., None].expand(*scores.shape[:-1], 1)], -1), -1
    )[..., :-1]


@dataclass(frozen=True, slots=True)
class KVGather:
    """Copies one layer's keys and values that lie in several storages side by side.

    Attributes:
        into: The parts of one tensor that they go to.
        out: Where they lie.
    """

    into: list[Tensor]
    out: list[Tensor]

    def __call__(self) -> Sequence[LowRankEntries]:
        torch._foreach_copy_(self.into, self.out)  # pyright: ignore[reportPrivateImportUsage]     (it has no other name)
        return ()


@dataclass(frozen=True, slots=True)
class PressedKVGather:
    """Copies one layer's keys and values of a pressed cache side by side.

    Attributes:
        cache: The cache.
        layer: Index of the layer.
        chunks: Blocks that lie packed.
        packed: Where these go, before the rest.
        into: Where the entries that are seen as they are go.
        out: Where those lie.
        apart: Whether low-rank parts of packed blocks are multiplied apart, which costs a row
            little, and not added to what lies there, which costs the same for any number of rows.
    """

    cache: KVCache
    layer: int
    chunks: Sequence[Chunk]
    packed: Tensor
    into: list[Tensor]
    out: list[Tensor]
    apart: bool

    def __call__(self) -> Sequence[LowRankEntries]:
        assert self.cache.press is not None
        factors: Sequence[LowRankEntries] = ()
        if self.chunks:
            blocks = [self.cache.packed_chunk(self.layer, c) for c in self.chunks]
            press: Any = self.cache.press
            if self.apart:
                factors = press.fill_backbones(blocks, self.packed)
            else:
                press.fill_blocks(blocks, self.packed)
        torch._foreach_copy_(self.into, self.out)  # pyright: ignore[reportPrivateImportUsage]
        return factors


@dataclass(frozen=True, slots=True)
class SpanAttention:
    """The attention of one query in the flat batch.

    Attributes:
        asks: Where its queries stand, ``[kv heads, group, m, head]``.
        query: Scratch for them, of the same shape.
        out: Scratch for what they gather, ``[kv heads, group * m, head]``.
        gathers: Where that goes, ``[kv heads, group, m, head]``.
        layers: Of every layer that runs the keys ``[kv heads, head, slots]``, the values, and what
            is seen of them.
        gather: Of every layer what is copied first, where keys lie with other caches or packed;
            else empty.
        cap: Bound of the scores; None: there is none.
        sinks: Of every layer one more score for each head; None: there are none.
    """

    asks: Tensor
    query: Tensor
    out: Tensor
    gathers: Tensor
    layers: Sequence[tuple[Tensor, Tensor, AttentionReach]]
    gather: Sequence[KVGather | PressedKVGather]
    cap: float | None
    sinks: Sequence[Tensor] | None

    def attend_layer(self, at: int) -> None:
        """Gather what the query's rows see in the layer with this index among those that run."""
        factors: Sequence[LowRankEntries] = ()
        if self.gather:
            factors = self.gather[at]()
        keys, values, reach = self.layers[at]
        query = self.query.copy_(self.asks)
        out = self.out
        if self.sinks is None:
            sink = None
        else:
            sink = self.sinks[at]
        # A long query in a layer that torch's own attention cannot compute: it knows neither bound
        # nor sink.
        if reach.scores is None and (self.cap is not None or sink is not None):
            for first in range(
                0, query.shape[2], LONG
            ):  # block by block: all scores at once would fill memory
                rows = slice(first, first + LONG)
                w = softcap_scores(torch.matmul(query[:, :, rows], keys[:, None]), self.cap)
                if reach.mask is not None:
                    w = w.add_(reach.mask[rows])
                self.gathers[:, :, rows].copy_(
                    softmax_over(w, None if sink is None else sink[..., None]) @ values[:, None]
                )
            return
        # A long query: attention over blocks, which never holds all scores. Queries are scaled
        # already.
        if reach.scores is None:
            KV, g, _, D = query.shape
            y = scaled_dot_product_attention(
                query,
                keys.transpose(1, 2)[:, None].expand(KV, g, -1, D),
                values[:, None].expand(KV, g, -1, D),
                reach.mask,
                scale=1.0,
            )
            self.gathers.copy_(y)
            return
        # A short query: [KV, g * M, D] x [KV, D, S], one product for all heads of a group.
        scores = torch.bmm(query.view(out.shape), keys, out=reach.scores)
        for entries in factors:
            entries.add_scores(scores, query.view(out.shape))
        scores = softcap_scores(scores, self.cap)
        if reach.masked is not None and reach.mask is not None:
            reach.masked.add_(reach.mask)
        weights = softmax_over(
            scores, None if sink is None else sink.repeat_interleave(query.shape[2], 1)
        )
        torch.bmm(weights, values, out=out)
        for entries in factors:
            entries.add_gathered(out, weights)
        self.gathers.copy_(out.view(query.shape))


@dataclass(frozen=True, slots=True)
class SingleTokenAttention:
    """The attention of one query of one token.

    Keys from the left are read twice as fast as from the right, so the product is turned around.

    Attributes:
        asks: Where its queries stand, ``[kv heads, group, 1, head]``.
        query: Scratch for them in the cache's number type; None: they have it already.
        columns: The queries as columns, ``[kv heads, head, group]``.
        out: Where what they gather goes, ``[kv heads, group, head]``.
        layers: Of every layer that runs the keys ``[kv heads, slots, head]``, the values, and what
            is seen of them; scores stand as ``[kv heads, slots, group]``.
        gather: Of every layer what is copied first, where keys lie with other caches or packed;
            else empty.
        cap: Bound of the scores; None: there is none.
        sinks: Of every layer one more score for each head; None: there are none.
    """

    asks: Tensor
    query: Tensor | None
    columns: Tensor
    out: Tensor
    layers: Sequence[tuple[Tensor, Tensor, AttentionReach]]
    gather: Sequence[KVGather | PressedKVGather]
    cap: float | None
    sinks: Sequence[Tensor] | None

    def attend_layer(self, at: int) -> None:
        """Gather what the token sees in the layer with this index among those that run."""
        factors: Sequence[LowRankEntries] = ()
        if self.gather:
            factors = self.gather[at]()
        keys, values, reach = self.layers[at]
        if self.query is not None:
            self.query.copy_(self.asks)
        scores = torch.bmm(keys, self.columns, out=reach.scores)
        for entries in factors:
            entries.add_scores(scores.transpose(1, 2), self.columns.transpose(1, 2))
        scores = softcap_scores(scores, self.cap)
        if reach.masked is not None and reach.mask is not None:
            reach.masked.add_(reach.mask)
        weights = softmax_over(
            scores.transpose(1, 2), None if self.sinks is None else self.sinks[at]
        )
        torch.bmm(weights, values, out=self.out)
        for entries in factors:
            entries.add_gathered(self.out, weights)


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """The attention of one pass.

    Attributes:
        spans: The attention of each query.
        write: Of every layer where the queries' keys and values go.
        fresh: Where these stand, ``[2, kv heads, m, head]`` each.
        gathered: Where spans leave what they gather, ``[T, heads * head]``.
        mixed: Where the network looks for it, in its own dtype; it may be the same tensor.
    """

    spans: Sequence[SpanAttention | SingleTokenAttention | SuperlinearAttention]
    write: Sequence[tuple[Tensor, ...]]
    fresh: list[Tensor]
    gathered: Tensor
    mixed: Tensor

    def __call__(self, at: int) -> None:
        """Cache the fresh keys and values of a layer, then gather what every row sees."""
        torch._foreach_copy_(self.write[at], self.fresh)  # pyright: ignore[reportPrivateImportUsage]
        for span in self.spans:
            span.attend_layer(at)
        if self.gathered is not self.mixed:
            self.mixed.copy_(self.gathered)


@dataclass(frozen=True, slots=True)
class PackedPass:
    """One pass over flat rows.

    Attributes:
        queries: Its queries, in order.
        index: Where each of them stands in the call.
        layers: Ascending indices of the layers that run.
        without: Halves of them that do not (see `NetworkQuery`).
        together: How many consecutive attentions read the same input.
        positions: Position of each flat row.
        begins: Of each query its first flat row.
        rows: The flat rows that are answered.
    """

    queries: Sequence[NetworkQuery]
    index: Sequence[int]
    layers: tuple[int, ...]
    without: frozenset[int]
    together: int
    positions: list[int]
    begins: list[int]
    rows: list[int]

    def __len__(self) -> int:
        return len(self.positions)


def group_into_passes(
    queries: Sequence[NetworkQuery], layers: int, limit: int
) -> Iterator[tuple[Run, list[int]]]:
    """Group queries that go into one pass together: they run the same layers, and have so many
    tokens at most.

    Args:
        queries: The queries of a call.
        layers: Number of layers of the network.
        limit: Tokens of a pass; a longer query has a pass of its own.

    Yields:
        What the pass runs, and the indices of its queries.
    """
    by = group_queries_by_run(queries, tuple(range(layers)))
    for run, members in by.items():
        group = list[int]()
        size = 0
        for i in members:
            if group and size + len(queries[i]) > limit:
                yield run, group
                group = []
                size = 0
            group.append(i)
            size += len(queries[i])
        yield run, group


def pack_queries(queries: Sequence[NetworkQuery], index: Sequence[int], run: Run) -> PackedPass:
    """Lay queries out flat.

    Args:
        queries: The queries of a call.
        index: Which of them go into this pass, in order.
        run: What it runs: layers, halves left out, attentions that read together.

    Returns:
        The pass, with the position of every row.
    """
    positions = list[int]()
    begins = list[int]()
    rows = list[int]()
    for i in index:
        q = queries[i]
        row = len(positions)
        m = len(q)
        cache = queries[i].cache
        stop = q.first + m
        length = cache.length
        # Without branches a token's position is its slot.
        if length >= stop or masks.is_chain(cache.parent):
            positions += q.slots
        else:
            at = [
                *range(q.first, length),
                *(length + d for d in masks.staged_entry_depths(cache.parent)),
            ]
            # The list begins at slot min(first, length): entries staged before the query are not
            # fed now.
            skip = max(q.first - length, 0)
            positions += at[skip : skip + m]
        begins.append(row)
        rows += [row + r for r in q.rows]
    return PackedPass([queries[i] for i in index], index, *run, positions, begins, rows)


def build_packed_attention(
    p: PackedPass,
    qkv: Tensor,
    mixed: Tensor,
    heads: AttentionHeads,
    windows: Sequence[int | None],
    causal: bool,
    block: int = 0,
    sinks: Sequence[Tensor] | None = None,
    superlinear: SuperlinearRule | None = None,
) -> PackedAttention:
    """Prepare the attention of a pass.

    Args:
        p: The pass.
        qkv: Where a layer's projections will stand, ``[T, heads + 2 kv heads, head]``, and behind
            them ``heads`` more that search, with `superlinear`.
        mixed: Where the network looks for what they gather, ``[T, heads * head]``.
        heads: Numbers of heads, and their width.
        windows: Of every layer of the network its sliding window in positions; None: it has none.
        causal: Whether a token sees nothing that follows it.
        block: Of a network that is not causal, positions of a block after whose end nothing is
            seen; 0: all is seen. Default 0.
        sinks: Of the layers that run, one more score for each head, ``[heads]``; None: there are
            none.
        superlinear: Which keys a row searches for and reads; None: it reads all that it sees.

    Returns:
        What is called once a layer, with the layer's index among those that run.
    """
    KV = heads.kv
    g = heads.group
    D = heads.width
    number = p.queries[0].cache.kv.dtype
    if sinks is None:
        sunk = None
    else:
        sunk = [s.to(number).view(KV, g) for s in sinks]
    # A single token's product writes straight into the output, which must have the cache's number
    # type for that.
    single = any(len(q) == 1 for q in p.queries)
    if mixed.dtype == number or not single:
        gathered = mixed
    else:
        gathered = mixed.new_zeros(mixed.shape, dtype=number)
    spans = list[SpanAttention | SingleTokenAttention | SuperlinearAttention]()
    fresh = list[Tensor]()
    write = list[Sequence[Tensor]]()
    for q, row in zip(p.queries, p.begins):
        m = len(q)
        kv = q.cache.kv
        end = row + len(q)
        # [m, heads, head] -> [kv heads, group, m, head], a view.
        asks = qkv[row:end, : heads.all].view(m, KV, g, D).permute(1, 2, 0, 3)
        goes = gathered[row:end].view(m, KV, g, D).permute(1, 2, 0, 3)
        place_fresh_entries(q, row, qkv, heads, p.layers, fresh, write)
        if superlinear is not None:
            search = qkv[row:end, heads.all + 2 * KV :].view(m, KV, g, D).permute(1, 2, 0, 3)
            kv, gather = _side_by_side(q.cache, q.first + m, p.layers, len(windows))
            spans.append(
                SuperlinearAttention(
                    superlinear,
                    asks,
                    search,
                    goes,
                    [(kv[i, 0], kv[i, 1]) for i in p.layers],
                    gather,
                    SearchPlaces.of_positions(
                        superlinear, torch.tensor(p.positions[row:end], device=kv.device)
                    ),
                    path_slots(q),
                )
            )
            continue
        layers, gather = _layers(q, p.positions[row:end], p.layers, heads, windows, causal, block)
        if m == 1:
            if qkv.dtype == number:
                query = None
            else:
                query = kv.new_empty(KV, g, m, D)
            # [kv heads, head, group].
            columns = (asks if query is None else query).view(KV, g, D).transpose(1, 2)
            spans.append(
                SingleTokenAttention(
                    asks, query, columns, goes.view(KV, g, D), layers, gather, heads.cap, sunk
                )
            )
        else:
            query = kv.new_empty(KV, g, m, D)
            out = kv.new_empty(KV, g * m, D)
            spans.append(SpanAttention(asks, query, out, goes, layers, gather, heads.cap, sunk))
    return PackedAttention(spans, list(zip(*write)), fresh, gathered, mixed)


def place_fresh_entries(
    q: NetworkQuery,
    row: int,
    qkv: Tensor,
    heads: AttentionHeads,
    layers: Sequence[int],
    fresh: list[Tensor],
    write: list[Sequence[Tensor]],
) -> None:
    """Note where a query's fresh keys and values stand, and where they go.

    Args:
        q: The query.
        row: Its first flat row.
        qkv: Where a layer's projections stand, ``[T, heads + 2 kv heads, head]``.
        heads: Numbers of heads, and their width.
        layers: Indices of the layers that run.
        fresh: Gets where the entries stand among the projections.
        write: Gets of each such place, for each layer that runs, where the entries go in the
            query's cache.
    """
    m = len(q)
    KV = heads.kv
    g = heads.group
    D = heads.width
    asks = qkv[row : row + m, : heads.all].view(m, KV, g, D).permute(1, 2, 0, 3)
    new = qkv[row : row + m, heads.all : heads.all + 2 * KV]
    new = new.view(m, 2, KV, D).permute(1, 2, 0, 3)
    # One copy for each run of consecutive slots.
    for i, stop in [(0, m)] if q.at is None else _runs(q.at):
        at = q.slots[i] - q.cache.start
        slots = q.cache.kv[..., at : at + stop - i, :].unbind(0)
        fresh.append(new[:, :, i:stop])
        write.append([slots[layer][:2] for layer in layers])
        if slots[0].shape[0] > 2:  # a press reads the queries, too
            fresh.append(asks[:, :, i:stop].transpose(0, 1))
            write.append([slots[layer][2:] for layer in layers])


def depth_slots(cache: KVCache, size: int) -> list[int]:
    """The positions of a cache's first slots: committed ones in order, staged ones by their depth.

    Args:
        cache: The cache.
        size: How many slots.

    Returns:
        One position a slot; siblings share one.
    """
    return [
        *range(cache.length),
        *(cache.length + d for d in masks.staged_entry_depths(cache.parent)),
    ][:size]


def path_slots(q: NetworkQuery) -> Tensor | None:
    """Of each row of a query the slots of its own text, by position.

    Args:
        q: A query of a causal network.

    Returns:
        ``[m, positions]``, whose entries behind a row's own position mean nothing; None: every
        position is its slot.
    """
    length = q.cache.length
    parent = q.cache.parent
    if q.first + len(q) <= length or masks.is_chain(parent):
        return None
    paths = list[list[int]]()
    for j, above in enumerate(parent):
        paths.append([*(paths[above] if above >= 0 else ()), length + j])
    # Committed rows among them see committed slots alone.
    rows = [paths[slot - length] if slot >= length else [] for slot in q.slots]
    deepest = max(map(len, rows))
    return torch.tensor(
        [[*range(length), *row, *[0] * (deepest - len(row))] for row in rows],
        device=q.cache.kv.device,
    )


def _side_by_side(
    cache: KVCache, size: int, layers: Sequence[int], count: int
) -> tuple[Tensor, list[KVGather]]:
    """The first entries of a cache in one tensor ``[layers, planes, kv heads, slots, head]``, and
    what copies each layer's there before it is read: nothing where no other cache holds them.

    Args:
        cache: The cache.
        size: How many entries are read.
        layers: Indices of the layers that run.
        count: Number of layers of the network.
    """
    kv = cache.kv
    if not cache.shared:
        return kv[..., :size, :], []
    # Every layer is gathered into the same place.
    place = kv.new_empty(*kv.shape[1:-2], size, kv.shape[-1])
    pieces = list(cache.entry_pieces(0, size))
    into = [place[..., at : at + piece.shape[-2], :] for at, piece in pieces]
    # Expanded over the layers, so that what follows need not know that there is one place for all.
    return place.expand(count, *place.shape), [
        KVGather(into, [piece[i] for _, piece in pieces]) for i in layers
    ]


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """``[first, stop)`` of the indices of slots that lie side by side."""
    first = 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != slots[i - 1] + 1:
            yield first, i
            first = i


def _layers(
    q: NetworkQuery,
    position: list[int],
    layers: tuple[int, ...],
    heads: AttentionHeads,
    windows: Sequence[int | None],
    causal: bool,
    block: int,
) -> tuple[list[tuple[Tensor, Tensor, AttentionReach]], Sequence[KVGather | PressedKVGather]]:
    m = len(q)
    cache = q.cache
    if getattr(cache, "press", None) is not None:
        return _pressed(q, position, layers, heads)
    kv = cache.kv
    stop = q.first + m
    seen = None
    # A single token after a chain sees every slot: no mask.
    if causal and not (m == 1 and masks.is_chain(cache.parent[: stop - min(cache.length, stop)])):
        seen = (
            min(q.first, cache.length),
            masks.let_see_each_other(
                masks.tree_attention_mask(
                    q.first, stop, cache.length, cache.parent, kv.dtype, kv.device
                ),
                q.mutual,
            ),
        )
    # A bidirectional network sees what follows, too.
    size = stop if causal else cache.end
    if block and not causal:
        seen = 0, masks.up_to_block(q.slots, size, block, kv)
    kv, gather = _side_by_side(cache, size, layers, len(windows))
    hidden = cache.hidden
    used = dict[
        tuple[int | None, bool], tuple[Sequence[Tensor], Sequence[Tensor], AttentionReach]
    ]()
    reaches = list[tuple[int | None, bool]]()
    for i in layers:
        width = windows[i]
        # A window that nothing falls out of is none, so that layers share one reach.
        if width is None or size <= width:
            width = None
        hides = hidden is not None and i >= hidden.layer
        reaches.append((width, hides))
        if reaches[-1] not in used:
            sees = seen
            if hidden is not None and hides:
                sees = 0, hidden.hide_from(q.slots, size, seen, kv)
            reach = _reach(q, sees, width, position, size, heads)
            part = kv[..., reach.start : size, :]
            # A single token's products take keys as [slots, head], others as [head, slots].
            if m == 1:
                keys = part[:, 0]
            else:
                keys = part[:, 0].transpose(-1, -2)
            used[reaches[-1]] = keys.unbind(0), part[:, 1].unbind(0), reach
    return [
        (used[way][0][i], used[way][1][i], used[way][2])
        for i, way in zip(layers, reaches, strict=True)
    ], gather


def _pressed(
    q: NetworkQuery, position: list[int], layers: tuple[int, ...], heads: AttentionHeads
) -> tuple[list[tuple[Tensor, Tensor, AttentionReach]], list[PressedKVGather]]:
    """The layers' keys, values and reaches over a pressed cache.

    A layer's packed blocks and the entries after them are laid side by side, each layer in its turn
    in one place. A block is packed when the pass is in its layer, where all entries before any row
    have been written.
    """
    cache = q.cache
    m = len(q)
    stop = q.first + len(q)
    kv = q.cache.kv
    # Columns of a row: what is packed, then entries from slot `seen.first` on.
    seen = view_pressed_cache(cache.press, position, q.first, cache.length, cache.parent, kv)
    behind = seen.packed
    size = behind + stop - seen.first
    # Packed entries stand first, and behind them those of the text that are still whole.
    place = kv.new_empty(2, *kv.shape[2:-2], size, kv.shape[-1])
    pieces = [
        (behind + at - seen.first, t[:, :2]) for at, t in cache.entry_pieces(seen.first, stop)
    ]
    into = [place[..., at : at + t.shape[-2], :] for at, t in pieces]
    # Factors that a press keeps of blocks are added to them only where many rows read the sum.
    apart = m < LONG and getattr(cache.press, "has_factors", False)
    # Gathered layer by layer, since a press may keep other entries in each.
    unpack = [
        PressedKVGather(
            cache, i, seen.chunks, place[..., :behind, :], into, [t[i] for _, t in pieces], apart
        )
        for i in layers
    ]
    mask = seen.mask
    # One row asks for a product of a matrix with a vector, which reads keys as they lie.
    if m == 1:
        keys = place[0]
    else:
        keys = place[0].transpose(-1, -2)
    # Torch's own attention serves long parts, so they need no scratch for scores.
    if m >= LONG:
        reach = AttentionReach(0, None, None, mask)
    elif m == 1:
        scores = kv.new_empty(heads.kv, size, heads.group)
        reach = AttentionReach(0, scores, *((None, None) if mask is None else (scores, mask.T)))
    else:
        scores = kv.new_empty(heads.kv, heads.group * m, size)
        reach = AttentionReach(0, scores, scores.view(heads.kv, heads.group, m, -1), mask)
    return [(keys, place[1], reach) for _ in layers], unpack


def _reach(
    q: NetworkQuery,
    seen: tuple[int, Tensor] | None,
    width: int | None,
    position: list[int],
    size: int,
    heads: AttentionHeads,
) -> AttentionReach:
    m = len(q)
    cache = q.cache
    kv = q.cache.kv
    start = 0
    # One token that sees everything: the window's begin is the only bound.
    if width is not None and seen is None:
        start = size - width
    elif width is not None and seen is not None:
        slots = depth_slots(cache, size)
        at = [torch.tensor(x, device=kv.device) for x in (position, slots)]
        start, mask = masks.sliding_window_mask(width, at[0], *seen, at[1])
        seen = 0, mask
    # The mask covers entries from `low` on only: what stands before is seen by all rows.
    low, mask = seen or (0, None)
    if m >= LONG:
        return AttentionReach(start, None, None, None if mask is None else pad(mask, (low, 0)))
    if m == 1:
        scores = kv.new_empty(heads.kv, size - start, heads.group)
        return AttentionReach(
            start, scores, *((None, None) if mask is None else (scores[:, low:], mask.T))
        )
    scores = kv.new_empty(heads.kv, heads.group * m, size - start)
    by_row = scores.view(heads.kv, heads.group, m, -1)
    return AttentionReach(
        start, scores, *((None, None) if mask is None else (by_row[..., low:], mask))
    )
