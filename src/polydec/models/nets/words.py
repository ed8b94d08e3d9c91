"""A word-pooled model as a network of sessions: a law of the next byte that runs its backbone once
a word.

Source: Thawani et al., Learn your tokens: word-pooled tokenization for language modeling, 2023. It
is trained in lab/train/word_kinds/word_pooled.py, which computes the same a whole text at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import RowDetail
from polydec.models.formats.fields import require_shapes
from polydec.models.formats.word_config import WordConfig
from polydec.models.nets.entries import EntryCache
from polydec.models.nets.query import NetworkAnswer, NetworkQuery


@dataclass(frozen=True, eq=False)
class WordCacheEntry:
    """What was read up to an entry.

    Attributes:
        word: Bytes of the word that is being written.
        state_NE: What the word's decoder sees of all words before it.
        memory: Keys and values of the backbone, of each layer ``[2, heads, positions, head]``.
        nbytes: Bytes that this entry added to them.
    """

    word: tuple[int, ...]
    state_NE: Tensor
    memory: tuple[Tensor, ...]
    nbytes: int = 0


class WordNetwork:
    """A `NeuralNetwork` of the next byte whose backbone runs once a word.

    Trees are fed node by node; the decoders of all rows that are asked for run as one batch, and a
    word's end runs encoder and backbone once.
    """

    tree = True
    rollback = True
    partial = False
    dtype = "float32"
    kernel = "torch (word-pooled)"

    def __init__(self, config: WordConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.size = config.vocab
        self.layers = config.layers
        self.context = config.context
        self.steps = 0  # of the backbone, so far
        require_shapes(weights, word_tensor_shapes(config))
        self.w = {name: weights[name].float() for name in word_tensor_shapes(config)}
        self.cost = float(sum(t.numel() for t in self.w.values()))
        c = config
        self.small = word_rotary_tables(c, c.slots + c.longest)
        self._turned = word_rotary_tables(c, 0)
        # The state before any word: the backbone has read its start vectors only, after an empty
        # memory.
        none = tuple(torch.empty(2, c.width // c.head, 0, c.head) for _ in range(c.layers))
        with torch.no_grad():
            self.first = self._behind(self.w["start"], none)

    @property
    def new_cache(self) -> Callable[[], EntryCache[WordCacheEntry]]:
        return EntryCache[WordCacheEntry]

    @torch.no_grad()
    def forward(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        # First every token is read into its cache, then all rows of all queries are decoded as one
        # batch.
        texts = [self._fed(q) for q in queries]
        # No rows where nobody wants a law: spelling words is the expensive part.
        asked = [
            []
            if q.want.law is RowDetail.NOTHING and q.want.base is RowDetail.NOTHING
            else list(q.rows)
            for q in queries
        ]
        # Rows of all texts are spelled together.
        flat = [text[r] for text, rows in zip(texts, asked, strict=True) for r in rows]
        if flat:
            logits_RV = self._spelled(flat)
        else:
            logits_RV = torch.empty(0, self.size)
        out = list[NetworkAnswer]()
        at = 0
        for q, rows in zip(queries, asked, strict=True):
            # Rows stand in the query, but nobody reads their law.
            if not rows and q.rows:
                told = None
            else:
                told = logits_RV[at : at + len(rows)]
            out.append(NetworkAnswer(told))
            at += len(rows)
        return out

    def _fed(self, q: NetworkQuery) -> list[WordCacheEntry]:
        """What was read up to each token of a query, which its cache holds from now on."""
        if q.embed is not None:
            raise RequestError("vectors stand in the prompt: a word-pooled model reads bytes only")
        for slot, token in enumerate(q.token, q.first):
            before = q.cache.slot_before(slot)
            q.cache.text[slot] = self._behind_token(self.first if before is None else before, token)
        return q.cache.text[q.first : q.first + len(q.token)]

    def _behind_token(self, before: WordCacheEntry, token: int) -> WordCacheEntry:
        c = self.config
        word = (*before.word, token)
        # The token that begins a text resets everything that was read.
        if token == c.begin:
            return self.first
        # Within a word the backbone has nothing to do: the byte waits until the word ends, or is
        # too long.
        if token not in c.ends and len(word) < c.longest:
            return replace(before, word=word, nbytes=0)
        # The encoder reads learned slots, then the word's bytes. What stands in the slots
        # afterwards is the word's pooled vector.
        x_1SE = torch.cat([self.w["slots"], self._embedded(word)])[None]
        cos_SD, sin_SD = (t[: x_1SE.shape[1]] for t in self.small)
        for i in range(c.encoder):
            x_1SE, _ = self._layer(f"encoder.{i}", x_1SE, cos_SD, sin_SD)
        return self._behind(F.linear(x_1SE[0, : c.slots], self.w["up.weight"]), before.memory)

    def _behind(self, read_NH: Tensor, memory: Sequence[Tensor]) -> WordCacheEntry:
        """What is known where a new word begins, once the backbone has read these vectors."""
        c = self.config
        past = memory[0].shape[2]
        self.steps += 1
        cos_PD, sin_PD = (t[past : past + c.slots] for t in self._turns(past + c.slots))
        # The new slots see all earlier words, and each other causally.
        see_SP = torch.ones(c.slots, past + c.slots, dtype=torch.bool).tril(past)
        x_1NH = read_NH[None]
        kept = list[Tensor]()
        for i, old in enumerate(memory):
            x_1NH, new = self._layer(f"layers.{i}", x_1NH, cos_PD, sin_PD, see_SP, old)
            kept.append(new)
        state_NH = F.rms_norm(x_1NH[0], (c.width,), self.w["norm.weight"], c.eps)
        # What the new slots take; older positions were counted by the entries that added them.
        added = sum(t.nbytes // max(1, t.shape[2]) * c.slots for t in kept)
        return WordCacheEntry((), F.linear(state_NH, self.w["down.weight"]), tuple(kept), added)

    def _turns(self, stop: int) -> tuple[Tensor, Tensor]:
        """Rotary tables of the backbone's positions, at least of those below `stop`.

        They grow with the texts: a config may say any context.
        """
        have = len(self._turned[0])
        if have < stop:
            self._turned = word_rotary_tables(self.config, max(stop, 2 * have, 256))
        return self._turned

    def _spelled(self, texts: Sequence[WordCacheEntry]) -> Tensor:
        """Logits of the byte that follows each text [R, V]."""
        c = self.config
        longest = max(len(t.word) for t in texts)
        # Words are padded on the right; causal attention keeps the padding out of sight.
        fill = [0] * longest
        word_RL = torch.tensor([[*t.word, *fill][:longest] for t in texts], dtype=torch.long)
        state_RNE = torch.stack([t.state_NE for t in texts])
        x_RSE = torch.cat([state_RNE, self._embedded(word_RL)], 1)
        S = x_RSE.shape[1]
        cos_SD, sin_SD = (t[:S] for t in self.small)
        see_SS = torch.ones(S, S, dtype=torch.bool).tril()
        for i in range(c.decoder):
            x_RSE, _ = self._layer(f"decoder.{i}", x_RSE, cos_SD, sin_SD, see_SS)
        # The next byte is read off at the word's last byte, or at the last slot where the word has
        # none yet.
        at = [c.slots - 1 + len(t.word) for t in texts]
        last_RE = F.rms_norm(x_RSE[range(len(texts)), at], (c.small,), self.w["last.weight"], c.eps)
        return F.linear(last_RE, self.w["embed_tokens.weight"])

    def _embedded(self, tokens: Any) -> Tensor:
        return F.embedding(torch.as_tensor(tokens, dtype=torch.long), self.w["embed_tokens.weight"])

    def _layer(
        self,
        name: str,
        x_BSE: Tensor,
        cos_SD: Tensor,
        sin_SD: Tensor,
        see_SP: Tensor | None = None,
        memory: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A layer's output, and its keys and values after those that were there.

        Args:
            name: Prefix of the layer's weights.
            x_BSE: What enters the layer.
            cos_SD: Cosines of the positions.
            sin_SD: Sines of the positions.
            see_SP: Whether a position sees another one; None: all see all.
            memory: Older keys and values of one text, ``[2, heads, past, head]``; None: there are
                none.

        Returns:
            The layer's output, and keys and values, ``[2, heads, P, head]`` for a batch of one.
        """
        c = self.config
        w = self.w
        B, S, E = x_BSE.shape

        def apply_part(key: str, y: Tensor) -> Tensor:
            """One of the layer's matrices, applied to y.

            Args:
                key: Name of the matrix within the layer.
                y: Rows that it reads.

            Returns:
                The products, one a row.
            """
            return F.linear(y, w[f"{name}.{key}.weight"])

        # Norms stand before each part, as in a Llama.
        y = F.rms_norm(x_BSE, (E,), w[f"{name}.input_layernorm.weight"], c.eps)
        q, k, v = (
            apply_part(f"self_attn.{p}_proj", y).view(B, S, -1, c.head).transpose(1, 2)
            for p in "qkv"
        )
        q, k = (apply_rotary(z, cos_SD, sin_SD) for z in (q, k))
        if memory is not None:
            # The memory stands first, so that columns of the mask count from the text's beginning.
            k, v = (torch.cat([old[None], z], 2) for old, z in zip(memory, (k, v), strict=True))
        attended = F.scaled_dot_product_attention(q, k, v, see_SP).transpose(1, 2).reshape(B, S, E)
        x_BSE = x_BSE + apply_part("self_attn.o_proj", attended)
        y = F.rms_norm(x_BSE, (E,), w[f"{name}.post_attention_layernorm.weight"], c.eps)
        gated = F.silu(apply_part("mlp.gate_proj", y)) * apply_part("mlp.up_proj", y)
        return x_BSE + apply_part("mlp.down_proj", gated), torch.cat([k, v])

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        raise _closed("states")

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        raise _closed("states")

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        raise _closed("embeddings")

    def read_keys(self, cache: Any, stop: int, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Refuse: a word-pooled model has no keys of a single byte.

        Args:
            cache: A cache of this network.
            stop: Number of entries.
            layer: Index of the layer; None: the last one.

        Raises:
            RequestError: Always.
        """
        raise _closed("keys")


def _closed(what: str) -> RequestError:
    return RequestError(
        f"this method reads the model's {what}: a word-pooled model has none of a byte"
    )


def word_rotary_tables(c: WordConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the positions 0 to length - 1.

    Args:
        c: Config of the model; its head size and its base count.
        length: Number of positions.

    Returns:
        Cosines and sines, each ``[length, head]``, float32; the second half of a row repeats the
        first.
    """
    inverse = c.theta ** (-torch.arange(0, c.head, 2).double() / c.head)
    angle = torch.outer(torch.arange(length).double(), inverse).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def apply_rotary(x: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
    """Turn queries or keys to their positions.

    Args:
        x: Queries or keys, ``[..., S, D]``; partners stand D / 2 dimensions from each other.
        cos_SD: Cosines of the positions.
        sin_SD: Sines of the positions.

    Returns:
        The turned ones, of the shape of `x`.
    """
    a, b = x.chunk(2, dim=-1)
    return x * cos_SD + torch.cat([-b, a], dim=-1) * sin_SD


def word_tensor_shapes(c: WordConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a directory, and their shapes."""

    def layer_shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of one layer.

        Args:
            name: Prefix of the layer's tensors.
            width: Size of its state; the MLP is three times as wide.

        Returns:
            The shapes by tensor name.
        """
        attention = {f"{name}.self_attn.{p}_proj.weight": (width, width) for p in "qkvo"}
        norms = ("input_layernorm", "post_attention_layernorm")
        return {
            **attention,
            **{f"{name}.{n}.weight": (width,) for n in norms},
            f"{name}.mlp.gate_proj.weight": (3 * width, width),
            f"{name}.mlp.up_proj.weight": (3 * width, width),
            f"{name}.mlp.down_proj.weight": (width, 3 * width),
        }

    # Tokens are read in a small width, words in a wide one: two matrices lead up and down between
    # them.
    out: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (c.vocab, c.small),
        "slots": (c.slots, c.small),
        "start": (c.slots, c.width),
        "up.weight": (c.width, c.small),
        "down.weight": (c.small, c.width),
        "norm.weight": (c.width,),
        "last.weight": (c.small,),
    }
    for room, count, width in (
        ("encoder", c.encoder, c.small),
        ("decoder", c.decoder, c.small),
        ("layers", c.layers, c.width),
    ):
        for i in range(count):
            out |= layer_shapes(f"{room}.{i}", width)
    return out
