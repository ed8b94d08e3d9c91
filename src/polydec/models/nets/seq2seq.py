"""Encoder-decoder networks in torch: what a source leaves for the decoder, and a decoder whose
caches point at it.

Tokens of all queries lie flat in one pass; attention looks at each query's own source and cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, relu, silu

from polydec.base.errors import FileError, RequestError
from polydec.core.types import RowDetail
from polydec.models.formats.fields import shape_of
from polydec.models.formats.images import PixelStrip, StripShape
from polydec.models.formats.seq2seq import Seq2SeqConfig
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.masks import staged_entry_depths, tree_attention_mask
from polydec.models.nets.query import NetworkAnswer, NetworkQuery
from polydec.models.nets.strips import strip_windows

ROOM = 64
"""Slots of a new cache."""


def _tanh(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")


_ACTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    # Two names of GELU by its tanh approximation.
    "gelu_new": _tanh,
    "gelu_pytorch_tanh": _tanh,
    "silu": silu,
    "swish": silu,
}


@dataclass(frozen=True)
class Seq2SeqNorm:
    """A norm of states.

    Attributes:
        weight: Scale of each dimension.
        bias: Added afterwards; None: a norm by the mean square (T5), else one by mean and variance.
        eps: Added under the root.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            # RMS norm: x / sqrt(mean(x^2) + eps) * weight.
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class LinearMap:
    """A linear map: a weight ``[out, in]``, and a bias ``[out]`` or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Seq2SeqAttention:
    """An attention of one layer.

    Attributes:
        query: Makes queries.
        key: Makes keys.
        value: Makes values.
        out: What the gathered values go through.
        norm: Stands before the attention (T5), or after its sum with what came in.
    """

    query: LinearMap
    key: LinearMap
    value: LinearMap
    out: LinearMap
    norm: Seq2SeqNorm


@dataclass(frozen=True)
class Seq2SeqBlock:
    """A layer.

    Attributes:
        own: Attention over the text itself.
        cross: Attention over the source; None in an encoder.
        into: The MLP's first maps, the gate's first where it has one.
        out: The MLP's last map.
        norm: Of the MLP.
    """

    own: Seq2SeqAttention
    cross: Seq2SeqAttention | None
    into: tuple[LinearMap, ...]
    out: LinearMap
    norm: Seq2SeqNorm


@dataclass(frozen=True)
class StripEmbedding:
    """What an image leaves for the first layer: each of its windows of pixels through two linear
    maps with a relu between them, and where the window stands.

    Attributes:
        shape: How images are cut into windows.
        into: The first map, of a window's pixels.
        out: The second map, to the width of the states.
        places: What is added at each position.
    """

    shape: StripShape
    into: LinearMap
    out: LinearMap
    places: StripPlaces

    def __call__(self, sources: Sequence[PixelStrip]) -> Tensor:
        weight = self.into.weight
        windows_NP = torch.cat([strip_windows(source, self.shape) for source in sources])
        rows_NW = self.out(relu(self.into(windows_NP.to(weight.device, weight.dtype))))
        placed_NW = torch.cat([self.places.first_rows(len(source)) for source in sources])
        return rows_NW + placed_NW


class SinusoidalPositions:
    """Marian's positions: sines, then cosines. The table grows with what is asked of it: a config
    may say any context."""

    def __init__(self, width: int, number: torch.dtype, device: torch.device) -> None:
        self._table_PW = torch.empty(0, width, dtype=number, device=device)

    def __getitem__(self, position_M: Tensor) -> Tensor:
        stop = int(position_M.max()) + 1
        have = len(self._table_PW)
        if have < stop:
            self._table_PW = self._rows(max(stop, 2 * have, 256)).to(self._table_PW)
        return self._table_PW[position_M]

    def _rows(self, count: int) -> Tensor:
        width = self._table_PW.shape[1]
        place = torch.arange(count, dtype=torch.float64)[:, None]
        half = torch.arange(width, dtype=torch.float64)[None, :]
        # Angle of position p in dimensions 2k and 2k + 1: p / 10000^(2k / width).
        turn = place / torch.pow(10000.0, 2 * torch.div(half, 2, rounding_mode="floor") / width)
        # Marian has all sines first, then all cosines; others alternate.
        return torch.cat([turn[:, 0::2].sin(), turn[:, 1::2].cos()], 1).float()


class StripPlaces:
    """What tells the positions of an image apart: waves of many lengths, in training and in use alike.

    T5's layers know distances alone, and take long to learn where the fourth letter of a word is.

    Source: Vaswani et al., "Attention is all you need" (2017).
    """

    def __init__(self, width: int, number: torch.dtype, device: torch.device) -> None:
        self._waves = SinusoidalPositions(width, number, device)
        # As small as what a window leaves at first, so that neither hides the other.
        self._size = width**-0.5

    def first_rows(self, count: int) -> Tensor:
        """What is added to the first positions, ``[count, width]``."""
        return self._waves[torch.arange(count)] * self._size


@dataclass(frozen=True)
class Seq2SeqStack:
    """An encoder or a decoder.

    Attributes:
        blocks: Its layers.
        places: What is added at each position; None: nothing, attention knows positions.
        enter: A norm of what enters; None: there is none.
        leave: A norm of what leaves; None: it is normed already.
        bias: T5's bias of relative positions, ``[buckets, heads]``; None: there is none.
    """

    blocks: tuple[Seq2SeqBlock, ...]
    places: Tensor | SinusoidalPositions | None
    enter: Seq2SeqNorm | None
    leave: Seq2SeqNorm | None
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Seq2SeqParts:
    """What encoder and decoder have in common.

    Attributes:
        config: Sizes and family.
        table: Embeddings, ``[V, width]``.
        head: Matrix that makes logits, ``[V, width]``.
        bias: Added to logits, ``[V]``; -inf for tokens that are never written.
        number: Number type of the computation.
        device: Where it runs.
    """

    config: Seq2SeqConfig
    table: Tensor
    head: Tensor
    bias: Tensor
    number: torch.dtype
    device: torch.device

    @property
    def before(self) -> bool:
        """Whether norms stand before what they belong to."""
        return self.config.family == "t5"

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """Embeddings of tokens, scaled as the family does, ``[n, width]``."""
        ids = torch.tensor(list(tokens), dtype=torch.long, device=self.device)
        return self.table[ids] * self.config.scale

    def embed_token_sources(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Embeddings of the tokens of some sources, one behind another."""
        return self.embed_tokens([token for source in sources for token in source])

    def split_heads(self, x: Tensor) -> Tensor:
        """``[tokens, heads * head]`` -> ``[heads, tokens, head]``."""
        return x.unflatten(-1, (self.config.heads, self.config.head)).transpose(0, 1)

    def layer_inputs(self, tower: Seq2SeqStack, x: Tensor, positions: Tensor) -> Tensor:
        """What goes into the first layer.

        Args:
            tower: The encoder or the decoder.
            x: Embeddings, ``[n, width]``.
            positions: Their positions, ``[n]``.

        Returns:
            Embeddings with positions added and the entry norm applied, as far as the family has
            them.
        """
        if tower.places is not None:
            x = x + tower.places[positions]
        if tower.enter is None:
            return x
        return tower.enter(x)

    def residual_step(
        self, x: Tensor, norm: Seq2SeqNorm, work: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Take a residual step, with the norm where the family has it.

        Args:
            x: The residual stream, ``[n, width]``.
            norm: The step's norm.
            work: Attention or MLP.

        Returns:
            The new stream.
        """
        if self.before:
            return x + work(norm(x))
        return norm(x + work(x))

    def run_mlp(self, block: Seq2SeqBlock, x: Tensor) -> Tensor:
        """The MLP of a layer.

        Args:
            block: The layer.
            x: What it reads, ``[n, width]``.

        Returns:
            What it adds, ``[n, width]``.
        """
        first, *others = block.into
        inner = _ACTS[self.config.act](first(x))
        return block.out(inner * others[0](x) if others else inner)

    def attend_heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attend with all heads at once.

        Args:
            query: Queries, ``[heads, m, head]``.
            key: Keys, ``[heads, n, head]``.
            value: Values, ``[heads, n, head]``.
            mask: Added to the scores, ``[heads or 1, m, n]``; None: everything is seen.

        Returns:
            What was gathered, ``[m, heads * head]``.
        """
        scores = query @ key.transpose(-1, -2)
        # T5 folds the scale into its weights.
        if not self.before:
            scores = scores * self.config.head**-0.5
        if mask is not None:
            scores = scores + mask
        return (torch.softmax(scores, -1) @ value).transpose(0, 1).flatten(1)

    def attend_flat_texts(
        self,
        layer: Seq2SeqAttention,
        slices: Sequence[slice],
        masks: Sequence[Tensor | None],
        h: Tensor,
    ) -> Tensor:
        """Attention of every text over itself.

        Args:
            layer: The layer's attention.
            slices: Where each text stands in `h`.
            masks: Of each text what is added to its scores; see `attend_heads`.
            h: What the attention reads, all texts flat, ``[tokens, width]``.

        Returns:
            What it adds, of the same shape.
        """
        # Matrices run over all texts at once, attention over each text apart: nothing need be
        # padded.
        q, k, v = (self.split_heads(m(h)) for m in (layer.query, layer.key, layer.value))
        mixed = [self.attend_heads(q[:, r], k[:, r], v[:, r], b) for r, b in zip(slices, masks)]
        return layer.out(torch.cat(mixed))

    def position_scores(
        self, tower: Seq2SeqStack, query: Tensor, key: Tensor, both: bool
    ) -> Tensor | None:
        """What T5 adds to scores, from how far positions stand from each other.

        Args:
            tower: The encoder or the decoder.
            query: Positions of the queries, ``[m]``.
            key: Positions of the keys, ``[n]``.
            both: Whether later positions are seen.

        Returns:
            ``[heads, m, n]``; None where the family adds nothing.
        """
        if tower.bias is None:
            return None
        return tower.bias[relative_position_buckets(query, key, both, self.config)].permute(2, 0, 1)


def relative_position_buckets(query: Tensor, key: Tensor, both: bool, c: Seq2SeqConfig) -> Tensor:
    """Buckets of T5's relative positions. Near distances have a bucket each, far ones share them by
    their logarithm.

    Args:
        query: Positions of the queries, ``[m]``.
        key: Positions of the keys, ``[n]``.
        both: Whether later positions are seen, which takes half the buckets.
        c: Config: number of buckets, and the distance from which on all share the last one.

    Returns:
        Bucket indices, ``[m, n]``.
    """
    n = c.buckets
    # Above 0 where the key stands later than the query.
    far = key[None, :] - query[:, None]
    bucket = torch.zeros_like(far)
    if both:
        n //= 2
        # Later positions take the upper half of the buckets.
        bucket = (far > 0).long() * n
        far = far.abs()
    else:
        # Later keys are masked anyway: they count as distance 0.
        far = -far.clamp(max=0)
    # The first half of the buckets has one distance each. In the second, bucket = exact +
    # log(distance / exact) / log(far / exact) * (n - exact).
    exact = n // 2
    log = torch.log(far.clamp(min=1).float() / exact) / math.log(c.far / exact)
    large = (exact + (log * (n - exact)).long()).clamp(max=n - 1)
    return bucket + torch.where(far < exact, far, large)


class Seq2SeqEncoder:
    """A model whose queries are sources and whose answers are what cross-attention reads of them.

    An answer has keys and values, ``[layers, 2, heads, tokens, head]``. Equal sources of a pass are
    read once.

    Args:
        parts: What it shares with the decoder.
        tower: Its layers.
        crosses: The decoder's attentions to it, layer by layer.
        embed_sources: What enters the first layer of some sources, one behind another,
            ``[positions, width]``, as many rows as they have positions.
    """

    def __init__(
        self,
        parts: Seq2SeqParts,
        tower: Seq2SeqStack,
        crosses: Sequence[Seq2SeqAttention],
        embed_sources: Callable[[Sequence[Any]], Tensor],
    ) -> None:
        self._parts = parts
        self._tower = tower
        self._crosses = tuple(crosses)
        self._embed_sources = embed_sources
        self.cost = 0.0  # before any decoder: whoever waits for it has written nothing yet
        self.passes = 0

    @torch.inference_mode()
    def forward(self, queries: Sequence[Any]) -> list[Tensor]:
        """Read sources, token ids or strips of pixels; one answer each, in order."""
        # Each different source once, in order of first appearance.
        sources = list(dict.fromkeys(queries))
        self.passes += 1
        p = self._parts
        x, rows = self.source_states(sources)
        # The decoder's cross-attention reads keys and values of the source: they are computed once
        # here, for every decoder layer.
        both = [
            torch.stack([p.split_heads(c.key(x)), p.split_heads(c.value(x))]) for c in self._crosses
        ]
        kv = torch.stack(both)
        # Copies, so that a source does not hold the memory of its neighbours in the pass.
        read = {source: kv[:, :, :, r].clone() for source, r in zip(sources, rows)}
        return [read[source] for source in queries]

    def source_states(self, sources: Sequence[Any]) -> tuple[Tensor, list[slice]]:
        """The states of sources behind all layers.

        Args:
            sources: Token ids each, or strips of pixels.

        Returns:
            States of all of them, one behind another, ``[positions, width]``, and where each stands.
        """
        p, tower, rows = self._parts, self._tower, _slices([len(source) for source in sources])
        places = [torch.arange(len(source), device=p.device) for source in sources]
        # All sources lie flat, one after another: everything but attention runs over all tokens at
        # once.
        x = p.layer_inputs(tower, self._embed_sources(sources), torch.cat(places))
        apart = [p.position_scores(tower, place, place, True) for place in places]
        for block in tower.blocks:
            own = partial(p.attend_flat_texts, block.own, rows, apart)
            x = p.residual_step(x, block.own.norm, own)
            x = p.residual_step(x, block.norm, lambda h, block=block: p.run_mlp(block, h))
        if tower.leave is not None:
            x = tower.leave(x)
        return x, rows


@dataclass(frozen=True, eq=False)
class GapQuery:
    """What a `GapFiller` is asked.

    Attributes:
        kv: What its encoder left of a source.
        known: The text so far, at least one token.
        count: Gaps after it, at least 1.
    """

    kv: Tensor
    known: tuple[int, ...]
    count: int


class GapFiller:
    """A model whose queries are texts with gaps at their end, and whose answers are the logits of
    the gaps, ``[count, V]``.

    Every position sees the whole text and the source.

    Attributes:
        mark: The token that stands in a gap. It is the last of the vocabulary, and no logits are
            given for it.
    """

    def __init__(self, decoder: Seq2SeqDecoder, mark: int) -> None:
        self._parts = decoder.parts
        self._tower = decoder.tower
        self.mark = mark
        self.encoder = decoder.encoder
        self.cost = decoder.cost

    def gap_query(self, kv: Tensor, known: Sequence[int], count: int) -> GapQuery:
        """The query of a text with gaps at its end.

        Args:
            kv: What the encoder left of a source.
            known: The text so far, at least one token.
            count: Gaps after it, at least 1.

        Returns:
            The query.
        """
        return GapQuery(kv, tuple(known), count)

    @torch.inference_mode()
    def forward(self, queries: Sequence[GapQuery]) -> list[Tensor]:
        """Logits of the gaps of each query, ``[count, V]`` without the mark's column."""
        p = self._parts
        tower = self._tower
        # The mark fills the gaps; every position sees all of them, so there is no mask.
        texts = [(*q.known, *(self.mark,) * q.count) for q in queries]
        rows = _slices([len(text) for text in texts])
        places = [torch.arange(len(text), device=p.device) for text in texts]
        x = p.layer_inputs(
            tower, p.embed_tokens([t for text in texts for t in text]), torch.cat(places)
        )
        # Biases depend on distances alone, so all layers share them.
        apart = [p.position_scores(tower, place, place, True) for place in places]
        for i, block in enumerate(tower.blocks):

            def cross_attention(h: Tensor, i: int = i, block: Seq2SeqBlock = block) -> Tensor:
                """Attention of every text over its own source.

                Args:
                    h: What the layer's attention reads, all texts flat.
                    i: Index of the layer.
                    block: The layer.

                Returns:
                    What it adds.
                """
                assert block.cross is not None, "a decoder reads a source"
                # Keys and values of the source were computed once, when it was encoded.
                asks = p.split_heads(block.cross.query(h))
                mixed = list[Tensor]()
                for q, r in zip(queries, rows, strict=True):
                    key, value = q.kv[i]
                    mixed.append(p.attend_heads(asks[:, r], key, value, None))
                return block.cross.out(torch.cat(mixed))

            own = partial(p.attend_flat_texts, block.own, rows, apart)
            x = p.residual_step(x, block.own.norm, own)
            assert block.cross is not None, "a decoder reads a source"
            x = p.residual_step(x, block.cross.norm, cross_attention)
            x = p.residual_step(x, block.norm, lambda h, block=block: p.run_mlp(block, h))
        return [
            # Logits of the gaps alone. The mark is the last token: cutting there leaves it out.
            linear(self._ready(x[r.stop - q.count : r.stop]), p.head)[:, : self.mark]
            for q, r in zip(queries, rows)
        ]

    def _ready(self, x: Tensor) -> Tensor:
        leave = self._tower.leave
        divide = self._parts.config.divide
        return (x if leave is None else leave(x)) / divide


def _slices(lengths: Sequence[int]) -> list[slice]:
    """Where each of these stands, one after another."""
    rows = list[slice]()
    at = 0
    for length in lengths:
        rows.append(slice(at, at + length))
        at += length
    return rows


class Seq2SeqDecoder:
    """A `NeuralNetwork` (models/nets/query.py) whose texts are written from a source.

    A cache's `beside` is what its text is written from: it has `kv`, as the encoder left it.
    """

    tree = rollback = True
    partial = False
    kernel = "torch"

    def __init__(self, parts: Seq2SeqParts, tower: Seq2SeqStack, encoder: Seq2SeqEncoder) -> None:
        c = self.config = parts.config
        self.parts = parts
        self.tower = tower
        self.encoder = encoder
        self.layers = c.layers
        self.context = c.context
        self.size = c.vocab
        self.dtype = str(parts.number).removeprefix("torch.")
        # Cost of a pass: the numbers of the matrices that a row goes through, the head included.
        self.cost = float(sum(m.weight.numel() for b in tower.blocks for m in _matrices(b)))
        self.cost += parts.head.numel()
        shape = (c.layers, 2, c.heads, 1, c.head)  # for passes without a source, which only cost
        self._nothing = torch.zeros(shape, dtype=parts.number, device=parts.device)

    def new_cache(self) -> KVCache:
        """An empty cache, ``[layers, 2, heads, slots, head]``."""
        c = self.config
        p = self.parts
        shape = (c.layers, 2, c.heads, ROOM, c.head)
        return KVCache(torch.zeros(shape, dtype=p.number, device=p.device))

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        """States after the last layer's norm, ``[n, width]``."""
        leave = self.tower.leave
        if leave is None:
            return hidden_RH
        return leave(hidden_RH)

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        """Logits of hidden states, through the final norm, ``[n, V]``."""
        p = self.parts
        return linear(self.normed_states(hidden_RH) / p.config.divide, p.head) + p.bias

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer before positions are added, ``[n, width]``."""
        return self.parts.embed_tokens(tokens)

    def read_keys(
        self, cache: KVCache, stop: int, layer: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Refuse: keys of an encoder-decoder model are not shown.

        Args:
            cache: A cache of this network.
            stop: Number of entries.
            layer: Index of the layer; None: the last one.

        Raises:
            RequestError: Always.
        """
        raise RequestError("keys cannot be read of an encoder-decoder model")

    @torch.inference_mode()
    def forward(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        """Answers in order; each depends on its own query only."""
        p, tower, rows = self.parts, self.tower, _slices([len(q) for q in queries])
        x = torch.cat([self._entering(q) for q in queries])
        # Positions of all slots that a query sees, since T5's bias needs those of the keys as well.
        places = [self._places(q) for q in queries]
        x = p.layer_inputs(tower, x, torch.cat([w[q.first :] for q, w in zip(queries, places)]))
        # T5's bias of positions is the same in every layer, so that it is part of the mask.
        masks = [self._mask(q, w) for q, w in zip(queries, places)]
        for i, block in enumerate(tower.blocks):

            def own_attention(h: Tensor, i: int = i, block: Seq2SeqBlock = block) -> Tensor:
                """Attention of every text over its own cache, to which the fed tokens' entries are
                written first.

                Args:
                    h: What the layer's attention reads, all queries flat.
                    i: Index of the layer.
                    block: The layer.

                Returns:
                    What it adds.
                """
                asks, k, v = (
                    p.split_heads(m(h)) for m in (block.own.query, block.own.key, block.own.value)
                )
                mixed = list[Tensor]()
                for q, r, mask in zip(queries, rows, masks):
                    stop = q.first + len(q)
                    # Fresh entries are written before attention, since the tokens see each other
                    # through the cache.
                    into = q.cache.kv[i, :, :, q.first - q.cache.start : stop - q.cache.start]
                    into[0], into[1] = k[:, r], v[:, r]
                    keys, values = q.cache.layer_entries(i, stop)
                    mixed.append(p.attend_heads(asks[:, r], keys, values, mask))
                return block.own.out(torch.cat(mixed))

            def cross_attention(h: Tensor, i: int = i, block: Seq2SeqBlock = block) -> Tensor:
                """Attention of every text over the source that its cache points at.

                Args:
                    h: What the layer's attention reads, all queries flat.
                    i: Index of the layer.
                    block: The layer.

                Returns:
                    What it adds.
                """
                assert block.cross is not None, "a decoder reads a source"
                asks = p.split_heads(block.cross.query(h))
                mixed = list[Tensor]()
                for q, r in zip(queries, rows):
                    # A pass without a source only measures cost: it reads one entry of zeros.
                    if q.cache.beside is None:
                        beside = self._nothing
                    else:
                        beside = q.cache.beside.kv
                    keys, values = beside[i]
                    mixed.append(p.attend_heads(asks[:, r], keys, values, None))
                return block.cross.out(torch.cat(mixed))

            x = p.residual_step(x, block.own.norm, own_attention)
            assert block.cross is not None, "a decoder reads a source"
            x = p.residual_step(x, block.cross.norm, cross_attention)
            x = p.residual_step(x, block.norm, lambda h, block=block: p.run_mlp(block, h))
        return [self._answer(q, x[r]) for q, r in zip(queries, rows)]

    def _entering(self, q: NetworkQuery) -> Tensor:
        if q.embed is None:
            return self.embed_tokens(q.token)
        # A token of -1 has no embedding: any row stands in, and is overwritten.
        x = self.embed_tokens([max(t, 0) for t in q.token] or [0] * len(q))
        x[torch.tensor(q.given)] = q.embed.to(x)
        return x

    def _answer(self, q: NetworkQuery, x: Tensor) -> NetworkAnswer:
        hidden_RH = x[list(q.rows)]
        silent = q.want.law is RowDetail.NOTHING and q.want.base is RowDetail.NOTHING
        return NetworkAnswer(
            None if silent else self.head_logits(hidden_RH), hidden_RH if q.want.hidden else None
        )

    def _places(self, q: NetworkQuery) -> Tensor:
        """The position of every slot up to the last that is fed."""
        cache = q.cache
        stop = q.first + len(q)
        staged = staged_entry_depths(cache.parent[: max(0, stop - cache.length)])
        where = [*range(min(cache.length, stop)), *(cache.length + d for d in staged)]
        return torch.tensor(where, device=self.parts.device)

    def _mask(self, q: NetworkQuery, places: Tensor) -> Tensor:
        """Who sees whom, and how far apart they stand: [heads or 1, fed, slots]."""
        cache = q.cache
        stop = q.first + len(q)
        p = self.parts
        mask = torch.zeros(len(q), stop, dtype=p.number, device=p.device)
        low = min(q.first, cache.length)
        # Slots below `low` are committed and older than the query: all of its tokens see them.
        mask[:, low:] = tree_attention_mask(
            q.first, stop, cache.length, cache.parent, p.number, p.device
        )
        apart = p.position_scores(self.tower, places[q.first :], places, False)
        if apart is None:
            return mask[None]
        return mask + apart


def _matrices(block: Seq2SeqBlock) -> list[LinearMap]:
    if block.cross is None:
        attentions = [block.own]
    else:
        attentions = [block.own, block.cross]
    return [
        *(m for a in attentions for m in (a.query, a.key, a.value, a.out)),
        *block.into,
        block.out,
    ]


def build(
    config: Seq2SeqConfig,
    weights: Mapping[str, Tensor],
    *,
    dtype: str = "auto",
    device: str = "cpu",
) -> Seq2SeqDecoder:
    """Make a network and its encoder from tensors by their published names.

    Args:
        config: Sizes and family.
        weights: The tensors by name; a lazy mapping will do.
        dtype: "auto", "torch" or "float32": computed in float32; "float64". Default "auto".
        device: Where it runs: "cpu", or a CUDA device. Default "cpu".

    Returns:
        The decoder; its `encoder` reads sources.

    Raises:
        FileError: A tensor is missing, of another shape or no number, or the dtype or the device
            cannot be had.
    """
    if dtype not in ("auto", "torch", "float32", "float64"):
        raise FileError(
            f"dtype is {dtype!r}: an encoder-decoder model is computed in 'float32' or 'float64'"
        )
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise FileError(
            f"device is {device!r}: this machine has no CUDA GPU that torch can use; 'cpu' runs here"
        )
    if dtype == "float64":
        number = torch.float64
    else:
        number = torch.float32
    # On the meta device shapes alone are compared: whatever does not fit is refused before anything
    # is read.
    _made(_Seq2SeqLoader(config, weights, number, torch.device("meta")))
    return _made(_Seq2SeqLoader(config, weights, number, where))


def _made(load: _Seq2SeqLoader) -> Seq2SeqDecoder:
    """What a loader's tensors make."""
    config = load.config
    encoder = load.read_tower(False)
    decoder = load.read_tower(True)
    table = load.read_first(_TABLES, (config.vocab, config.width))
    # Without a head of its own the embedding table is the head.
    head = load.read_first(("lm_head.weight", *_TABLES), (config.vocab, config.width))
    bias = torch.zeros(config.vocab, dtype=load.number, device=load.device)
    if "final_logits_bias" in load.weights:
        bias += load.read_tensor("final_logits_bias", (1, config.vocab))[0]
    # Tokens that are never written, such as padding.
    bias[list(config.barred)] = float("-inf")
    parts = Seq2SeqParts(config, table, head, bias, load.number, load.device)
    crosses = [b.cross for b in decoder.blocks if b.cross is not None]
    entering = load.read_source_embedding(parts)
    return Seq2SeqDecoder(parts, decoder, Seq2SeqEncoder(parts, encoder, crosses, entering))


def build_strip_encoder(config: Seq2SeqConfig, weights: Mapping[str, Tensor]) -> Seq2SeqEncoder:
    """Make an encoder of images alone, whose states something else than a decoder reads, in float32.

    Args:
        config: Sizes; its `strip` says how images are cut.
        weights: The encoder's tensors by their published names.

    Returns:
        The encoder, of which `source_states` is of use.

    Raises:
        FileError: As for `build`.
    """
    load = _Seq2SeqLoader(config, weights, torch.float32, torch.device("cpu"))
    # Nothing of it reads or writes tokens.
    none = torch.zeros(0, config.width)
    parts = Seq2SeqParts(config, none, none, none[:, 0], torch.float32, load.device)
    return Seq2SeqEncoder(parts, load.read_tower(False), (), load.read_source_embedding(parts))


_TABLES = (
    "shared.weight",
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "encoder.embed_tokens.weight",
)


@dataclass(frozen=True)
class _Seq2SeqLoader:
    """Reads tensors by the names of a family."""

    config: Seq2SeqConfig
    weights: Mapping[str, Tensor]
    number: torch.dtype
    device: torch.device

    def read_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor and check it.

        Args:
            name: Its published name.
            shape: The shape that the config asks for.

        Returns:
            The tensor, on the device and in the number type of the network; without data on the
            meta device.

        Raises:
            FileError: It is missing, of another shape, or has a number that is NaN or infinite.
        """
        if name not in self.weights:
            raise FileError(
                f"weights lack {name}: the checkpoint is not complete, or of another architecture"
            )
        if (stored := tuple(shape_of(self.weights, name))) != shape:
            raise FileError(f"{name} has shape {stored}: the config asks for {shape}")
        # The rehearsal: shapes are right, and nothing is read.
        if self.device.type == "meta":
            return torch.empty(shape, dtype=self.number, device=self.device)
        t = self.weights[name].to(self.device, self.number)
        if not t.isfinite().all():
            raise FileError(f"{name}: a number in it is NaN or infinite")
        return t

    def read_first(self, names: Sequence[str], shape: tuple[int, ...]) -> Tensor:
        """Read the first of several tensors that is there.

        Args:
            names: Published names, in order of preference.
            shape: The shape that the config asks for.

        Returns:
            The tensor.

        Raises:
            FileError: None is there, or `get` refuses it.
        """
        return self.read_tensor(next((n for n in names if n in self.weights), names[0]), shape)

    def read_source_embedding(self, parts: Seq2SeqParts) -> Callable[[Sequence[Any]], Tensor]:
        """What makes rows of sources: the table of tokens, or the two maps that an image's strips go
        through."""
        strip = self.config.strip
        if strip is None:
            return parts.embed_token_sources
        inner = self.row_count("strips.into.weight")
        into = self.read_linear("strips.into", inner, strip.height * strip.window)
        out = self.read_linear("strips.out", self.config.width, inner)
        places = StripPlaces(self.config.width, into.weight.dtype, into.weight.device)
        return StripEmbedding(strip, into, out, places)

    def read_tower(self, decoder: bool) -> Seq2SeqStack:
        """The decoder, or the encoder."""
        c = self.config
        side = "decoder" if decoder else "encoder"
        blocks = tuple(self.read_block(decoder, i) for i in range(c.layers if decoder else c.first))
        if c.family == "t5":
            # T5 stores the bias in its first layer and uses it in all of them.
            name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            leave = self.read_norm(f"{side}.final_layer_norm")
            return Seq2SeqStack(
                blocks, None, None, leave, self.read_tensor(name, (c.buckets, c.heads))
            )
        if c.family == "marian":
            return Seq2SeqStack(
                blocks, SinusoidalPositions(c.width, self.number, self.device), None, None, None
            )
        # BART's table has two rows before position 0.
        places = self.read_tensor(f"model.{side}.embed_positions.weight", (c.context + 2, c.width))
        return Seq2SeqStack(
            blocks, places[2:], self.read_norm(f"model.{side}.layernorm_embedding"), None, None
        )

    def read_block(self, decoder: bool, i: int) -> Seq2SeqBlock:
        """Read a layer.

        Args:
            decoder: Whether it is one of the decoder's.
            i: Its index.

        Returns:
            The layer.
        """
        c = self.config
        if c.family == "t5":
            at = f"{'decoder' if decoder else 'encoder'}.block.{i}.layer"
            # T5 numbers the parts of a layer: self-attention, cross-attention (in the decoder),
            # MLP.
            last = 2 if decoder else 1
            mlp = f"{at}.{last}.DenseReluDense"
            if c.gated:
                names = (f"{mlp}.wi_0", f"{mlp}.wi_1")
            else:
                names = (f"{mlp}.wi",)
            inner = self.row_count(f"{names[0]}.weight")
            return Seq2SeqBlock(
                self.t5_attention(f"{at}.0.SelfAttention", f"{at}.0.layer_norm"),
                self.t5_attention(f"{at}.1.EncDecAttention", f"{at}.1.layer_norm")
                if decoder
                else None,
                tuple(LinearMap(self.read_tensor(f"{n}.weight", (inner, c.width))) for n in names),
                LinearMap(self.read_tensor(f"{mlp}.wo.weight", (c.width, inner))),
                self.read_norm(f"{at}.{last}.layer_norm"),
            )
        # BART and Marian, whose parts have names.
        at = f"model.{'decoder' if decoder else 'encoder'}.layers.{i}"
        inner = self.row_count(f"{at}.fc1.weight")
        return Seq2SeqBlock(
            self.read_attention(f"{at}.self_attn"),
            self.read_attention(f"{at}.encoder_attn") if decoder else None,
            (self.read_linear(f"{at}.fc1", inner, c.width),),
            self.read_linear(f"{at}.fc2", c.width, inner),
            self.read_norm(f"{at}.final_layer_norm"),
        )

    def row_count(self, name: str) -> int:
        """Number of rows of a matrix, which the config need not say; 0 where it is missing."""
        if name in self.weights:
            return shape_of(self.weights, name)[0]
        return 0

    def t5_attention(self, at: str, norm: str) -> Seq2SeqAttention:
        """Read an attention of a T5 layer. It has no biases.

        Args:
            at: Prefix of its matrices.
            norm: Prefix of its norm.

        Returns:
            The attention.
        """
        c = self.config
        inner = c.heads * c.head
        q, k, v = (LinearMap(self.read_tensor(f"{at}.{x}.weight", (inner, c.width))) for x in "qkv")
        return Seq2SeqAttention(
            q,
            k,
            v,
            LinearMap(self.read_tensor(f"{at}.o.weight", (c.width, inner))),
            self.read_norm(norm),
        )

    def read_attention(self, at: str) -> Seq2SeqAttention:
        """Read an attention of a BART or Marian layer, from the prefix of its matrices."""
        W = self.config.width
        q, k, v, o = (
            self.read_linear(f"{at}.{x}", W, W) for x in ("q_proj", "k_proj", "v_proj", "out_proj")
        )
        return Seq2SeqAttention(q, k, v, o, self.read_norm(f"{at}_layer_norm"))

    def read_linear(self, at: str, rows: int, width: int) -> LinearMap:
        """Read a linear map with a bias.

        Args:
            at: Prefix of its tensors.
            rows: Size of what it gives.
            width: Size of what it reads.

        Returns:
            The map.
        """
        return LinearMap(
            self.read_tensor(f"{at}.weight", (rows, width)), self.read_tensor(f"{at}.bias", (rows,))
        )

    def read_norm(self, at: str) -> Seq2SeqNorm:
        """Read a norm, from the prefix of its tensors; T5's have no bias."""
        c = self.config
        if c.family == "t5":
            bias = None
        else:
            bias = self.read_tensor(f"{at}.bias", (c.width,))
        return Seq2SeqNorm(self.read_tensor(f"{at}.weight", (c.width,)), bias, c.eps)
