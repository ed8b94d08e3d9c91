"""A network whose backbone runs once a word, whatever reads a word and whatever writes one.

`words.py` and `byte_words.py` have the two that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import RowDetail
from polydec.models.formats.byte_word_config import ByteWordConfig
from polydec.models.formats.fields import require_shapes
from polydec.models.formats.word_config import WordConfig
from polydec.models.nets.entries import EntryCache
from polydec.models.nets.llama_layer import (
    LayerSizes,
    layer_tensor_shapes,
    rotary_tables,
    run_llama_layer,
)
from polydec.models.nets.query import NetworkAnswer, NetworkQuery

BackboneSizes = WordConfig | ByteWordConfig
"""What a backbone is told of itself."""


@dataclass(frozen=True, eq=False)
class WordCacheEntry:
    """What was read up to an entry.

    Attributes:
        word: Tokens of the word that is being written.
        state_NE: What is known of all words before it, as the codec keeps it.
        memory: Keys and values of the backbone, of each layer ``[2, heads, positions, head]``.
        nbytes: Bytes that this entry added to them.
    """

    word: tuple[int, ...]
    state_NE: Tensor
    memory: tuple[Tensor, ...]
    nbytes: int = 0


class WordCodec(Protocol):
    """Reads words into vectors, and writes the word that follows.

    Attributes:
        called: What such a model is, in messages.
        unit: What a token of it is.
        size: Number of its weights.
    """

    called: str
    unit: str
    size: int

    def word_vectors(self, word: Sequence[int]) -> Tensor:
        """What the backbone reads of a whole word, ``[slots, width]``."""
        ...

    def kept_state(self, state_NH: Tensor) -> Tensor:
        """What is kept of the backbone's normed states until the next word is whole."""
        ...

    def next_logits(self, texts: Sequence[WordCacheEntry]) -> Tensor:
        """Logits of the token that follows each text, ``[R, vocab]``."""
        ...


class WordBackboneNetwork:
    """A `NeuralNetwork` of the next token whose backbone runs once a word.

    Trees are fed node by node; all rows that are asked for are written as one batch, and a word's
    end runs the backbone once.

    Args:
        config: Sizes.
        weights: Tensors of the backbone, by name.
        codec: Reads and writes words.
    """

    tree = True
    rollback = True
    partial = False
    dtype = "float32"

    def __init__(
        self, config: BackboneSizes, weights: Mapping[str, Tensor], codec: WordCodec
    ) -> None:
        self.config = config
        self.sizes = LayerSizes(config.head, config.eps, config.theta)
        # Which of the two ways to read and write words this is, only the codec knows.
        self.codec = codec
        self.kernel = f"torch ({codec.called})"
        self.size = config.vocab
        self.layers = config.layers
        self.context = config.context
        self.steps = 0  # of the backbone, so far
        shapes = backbone_tensor_shapes(config)
        require_shapes(weights, shapes)
        self.w = {name: weights[name].float() for name in shapes}
        self.cost = float(sum(t.numel() for t in self.w.values()) + codec.size)
        self._turned = rotary_tables(self.sizes, 0)
        # The state before any word: the backbone has read its start vectors only, after an empty
        # memory.
        none = tuple(
            torch.empty(2, config.width // config.head, 0, config.head)
            for _ in range(config.layers)
        )
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
            logits_RV = self.codec.next_logits(flat)
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
            raise RequestError(
                f"vectors stand in the prompt: a {self.codec.called} model reads {self.codec.unit}s only"
            )
        # In order: a token may continue one that this very query brings.
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
        # Within a word the backbone has nothing to do: the token waits until the word ends, or is
        # too long.
        if token not in c.ends and len(word) < c.longest:
            return replace(before, word=word, nbytes=0)
        return self._behind(self.codec.word_vectors(word), before.memory)

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
            turns = (cos_PD, sin_PD)
            x_1NH, new = run_llama_layer(
                self.sizes, self.w, f"layers.{i}", x_1NH, turns, see_SP, old
            )
            # The older part is copied, not shared: texts that branch never write into each other's
            # memory.
            kept.append(new)
        state_NH = F.rms_norm(x_1NH[0], (c.width,), self.w["norm.weight"], c.eps)
        # What the new slots take; older positions were counted by the entries that added them.
        added = sum(t.nbytes // max(1, t.shape[2]) * c.slots for t in kept)
        return WordCacheEntry((), self.codec.kept_state(state_NH), tuple(kept), added)

    def _turns(self, stop: int) -> tuple[Tensor, Tensor]:
        """Rotary tables of the backbone's positions, at least of those below `stop`.

        They grow with the texts: a config may say any context.
        """
        have = len(self._turned[0])
        if have < stop:
            # Doubled, so that a text that grows word by word makes few new tables.
            self._turned = rotary_tables(self.sizes, max(stop, 2 * have, 256))
        return self._turned

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        raise self._closed("states")

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        raise self._closed("states")

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        raise self._closed("embeddings")

    def read_keys(self, cache: Any, stop: int, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Refuse: such a model has no keys of a single token.

        Args:
            cache: A cache of this network.
            stop: Number of entries.
            layer: Index of the layer; None: the last one.

        Raises:
            RequestError: Always.
        """
        raise self._closed("keys")

    def _closed(self, what: str) -> RequestError:
        return RequestError(
            f"this method reads the model's {what}: a {self.codec.called} model has none of a {self.codec.unit}"
        )


def backbone_tensor_shapes(c: BackboneSizes) -> dict[str, tuple[int, ...]]:
    """The tensors of a backbone, and their shapes."""
    out: dict[str, tuple[int, ...]] = {
        "start": (c.slots, c.width),
        "norm.weight": (c.width,),
    }
    for i in range(c.layers):
        out |= layer_tensor_shapes(f"layers.{i}", c.width)
    return out
