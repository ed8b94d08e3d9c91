"""Networks that foretell the embedding of an answer from an image and a question, read answers into
the same space, and turn an embedding into vectors of a prompt.

Source: VL-JEPA (2025): the embedding of the answer is foretold, not its tokens. There the layers
that foretell begin as a language model's, and a published text embedder reads answers; here both
begin as the target's language model. The functions serve training and use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.models.nets.llama_layer import (
    LayerSizes,
    layer_tensor_shapes,
    rotary_tables,
    run_llama_layer,
)

SPREAD = 4
"""Numbers between an embedding and its vectors, for each number of a state."""


@dataclass(frozen=True)
class EmbeddingSizes:
    """Sizes of the networks.

    Attributes:
        vocab: Tokens of questions and answers.
        width: Of all states, and of the vectors of images; a multiple of head.
        head: Size of an attention head, even.
        foretelling: Layers that read an image and a question.
        reading: Layers that read an answer.
        size: Numbers of an embedding.
        shown: Vectors that stand for an embedding in a prompt.
    """

    vocab: int
    width: int
    head: int
    foretelling: int
    reading: int
    size: int
    shown: int

    @property
    def layer_sizes(self) -> LayerSizes:
        """Of each layer."""
        return LayerSizes(self.head)


def embedding_tensor_shapes(c: EmbeddingSizes) -> dict[str, tuple[int, ...]]:
    """The tensors of the networks, and their shapes."""
    out: dict[str, tuple[int, ...]] = {}
    # Two networks of one form, apart: what is asked and what is answered are read by different ones.
    for room, count in (("foretelling", c.foretelling), ("reading", c.reading)):
        # Each has a table of its own, as the one that reads answers moves more slowly.
        out[f"{room}.embed"] = (c.vocab, c.width)
        for i in range(count):
            out |= layer_tensor_shapes(f"{room}.{i}", c.width)
        out[f"{room}.norm"] = (c.width,)
        out[f"{room}.head"] = (c.size, c.width)
    # One embedding becomes several vectors: one would say too little to a model of tokens.
    out["shown.spread"] = (SPREAD * c.width, c.size)
    out["shown.vectors"] = (c.shown * c.width, SPREAD * c.width)
    return out


def foretell_answers(
    c: EmbeddingSizes, w: Mapping[str, Tensor], image_BPW: Tensor, id_BT: Tensor, there_BT: Tensor
) -> Tensor:
    """Foretell the embeddings of answers.

    Args:
        c: Sizes.
        w: Weights, by name.
        image_BPW: Vectors of the images, P of each.
        id_BT: Token ids of the questions.
        there_BT: Which of them are there.

    Returns:
        Embeddings of length 1, ``[B, size]``.
    """
    # The image stands first, as in a prompt.
    x_BSW = torch.cat([image_BPW, w["foretelling.embed"][id_BT]], 1)
    # All images of a step have as many vectors.
    there_BS = F.pad(there_BT, (image_BPW.shape[1], 0), value=True)
    return _embedding_of(c, w, "foretelling", c.foretelling, x_BSW, there_BS)


def read_answers(
    c: EmbeddingSizes, w: Mapping[str, Tensor], id_BT: Tensor, there_BT: Tensor
) -> Tensor:
    """Read the embeddings of answers.

    Args:
        c: Sizes.
        w: Weights, by name.
        id_BT: Token ids.
        there_BT: Which of them are there.

    Returns:
        Embeddings of length 1, ``[B, size]``.
    """
    return _embedding_of(c, w, "reading", c.reading, w["reading.embed"][id_BT], there_BT)


def vectors_of_embeddings(c: EmbeddingSizes, w: Mapping[str, Tensor], s_BE: Tensor) -> Tensor:
    """The vectors that stand for embeddings in a prompt.

    Args:
        c: Sizes.
        w: Weights, by name.
        s_BE: Embeddings.

    Returns:
        Vectors, ``[B, shown, width]``.
    """
    # Wider between: many numbers must come of few.
    spread_BX = F.gelu(s_BE @ w["shown.spread"].T)
    return (spread_BX @ w["shown.vectors"].T).unflatten(-1, (c.shown, c.width))


def _embedding_of(
    c: EmbeddingSizes,
    w: Mapping[str, Tensor],
    room: str,
    layers: int,
    x_BSW: Tensor,
    there_BS: Tensor,
) -> Tensor:
    """What is read: all see all, and the mean of the last states becomes an embedding."""
    turns = rotary_tables(c.layer_sizes, x_BSW.shape[1])
    # Read, not written: every place sees those behind it, too.
    seen = there_BS[:, None, None]
    for i in range(layers):
        x_BSW, _ = run_llama_layer(c.layer_sizes, w, f"{room}.{i}", x_BSW, turns, seen)
    x_BSW = F.rms_norm(x_BSW, (c.width,), w[f"{room}.norm"], c.layer_sizes.eps)
    # A mean, and not the last state: all places saw all others.
    share_B1S = (there_BS / there_BS.sum(1, keepdim=True))[:, None]
    # Only directions are compared.
    return F.normalize((share_B1S @ x_BSW)[:, 0] @ w[f"{room}.head"].T, dim=-1)
