"""A word-pooled model as a network of sessions: a law of the next byte that runs its backbone once
a word.

Source: Thawani et al., Learn your tokens: word-pooled tokenization for language modeling, 2023. It
is trained in lab/train/word_kinds/word_pooled.py, which computes the same a whole text at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.models.formats.fields import require_shapes
from polydec.models.formats.word_config import WordConfig
from polydec.models.nets.llama_layer import (
    LayerSizes,
    layer_tensor_shapes,
    rotary_tables,
    run_llama_layer,
)
from polydec.models.nets.word_backbone import (
    WordBackboneNetwork,
    WordCacheEntry,
    backbone_tensor_shapes,
)


class PooledWordCodec:
    """An encoder makes a few vectors of a word's bytes, a decoder spells the next word byte by
    byte."""

    called = "word-pooled"
    unit = "byte"

    def __init__(self, config: WordConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.sizes = LayerSizes(config.head, config.eps, config.theta)
        shapes = codec_tensor_shapes(config)
        require_shapes(weights, shapes)
        self.w = {name: weights[name].float() for name in shapes}
        self.size = sum(t.numel() for t in self.w.values())
        # Positions begin anew in each word, so no text needs more of them.
        self.turns = rotary_tables(self.sizes, config.slots + config.longest)

    def word_vectors(self, word: Sequence[int]) -> Tensor:
        c = self.config
        # The encoder reads learned slots, then the word's bytes. What stands in the slots
        # afterwards is the word's pooled vector.
        x_1SE = torch.cat([self.w["slots"], self._embedded(word)])[None]
        cos_SD, sin_SD = (t[: x_1SE.shape[1]] for t in self.turns)
        for i in range(c.encoder):
            # No mask: the word is whole, and all of it may be seen.
            x_1SE, _ = run_llama_layer(self.sizes, self.w, f"encoder.{i}", x_1SE, (cos_SD, sin_SD))
        return F.linear(x_1SE[0, : c.slots], self.w["up.weight"])

    def kept_state(self, state_NH: Tensor) -> Tensor:
        return F.linear(state_NH, self.w["down.weight"])

    def next_logits(self, texts: Sequence[WordCacheEntry]) -> Tensor:
        c = self.config
        longest = max(len(t.word) for t in texts)
        # Words are padded on the right; causal attention keeps the padding out of sight.
        fill = [0] * longest
        word_RL = torch.tensor([[*t.word, *fill][:longest] for t in texts], dtype=torch.long)
        state_RNE = torch.stack([t.state_NE for t in texts])
        x_RSE = torch.cat([state_RNE, self._embedded(word_RL)], 1)
        S = x_RSE.shape[1]
        cos_SD, sin_SD = (t[:S] for t in self.turns)
        see_SS = torch.ones(S, S, dtype=torch.bool).tril()
        for i in range(c.decoder):
            x_RSE, _ = run_llama_layer(
                self.sizes, self.w, f"decoder.{i}", x_RSE, (cos_SD, sin_SD), see_SS
            )
        # The next byte is read off at the word's last byte, or at the last slot where the word has
        # none yet.
        at = [c.slots - 1 + len(t.word) for t in texts]
        last_RE = F.rms_norm(x_RSE[range(len(texts)), at], (c.small,), self.w["last.weight"], c.eps)
        return F.linear(last_RE, self.w["embed_tokens.weight"])

    def _embedded(self, tokens: Any) -> Tensor:
        return F.embedding(torch.as_tensor(tokens, dtype=torch.long), self.w["embed_tokens.weight"])


def pooled_word_network(config: WordConfig, weights: Mapping[str, Tensor]) -> WordBackboneNetwork:
    """A word-pooled network of these weights.

    Args:
        config: Sizes.
        weights: Tensors of a directory, by name.

    Returns:
        The network.

    Raises:
        FileError: A tensor is missing, or has another shape.
    """
    return WordBackboneNetwork(config, weights, PooledWordCodec(config, weights))


def codec_tensor_shapes(c: WordConfig) -> dict[str, tuple[int, ...]]:
    """The tensors inside of words, and their shapes."""
    # Tokens are read in a small width, words in a wide one: two matrices lead up and down between
    # them.
    out: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (c.vocab, c.small),
        "slots": (c.slots, c.small),
        "up.weight": (c.width, c.small),
        "down.weight": (c.small, c.width),
        "last.weight": (c.small,),
    }
    for room, count in (("encoder", c.encoder), ("decoder", c.decoder)):
        for i in range(count):
            out |= layer_tensor_shapes(f"{room}.{i}", c.small)
    return out


def word_tensor_shapes(c: WordConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a directory, and their shapes."""
    return codec_tensor_shapes(c) | backbone_tensor_shapes(c)
