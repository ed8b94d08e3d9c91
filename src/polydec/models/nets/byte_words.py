"""Byte2Word: words are read from their bytes by cross-attention, and written in subword pieces.

Source: Lee, Guo and Qiu, Word-level representation from bytes for language modeling, 2022. There
the network reads both sides of a masked word; here it reads what stands before the next one. The
functions of this file serve training and decoding alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import FileError
from polydec.models.formats.byte_word_config import WORD_ROW, ByteWordConfig
from polydec.models.formats.fields import require_shapes
from polydec.models.nets.word_backbone import (
    WordBackboneNetwork,
    WordCacheEntry,
    backbone_tensor_shapes,
)

NONE = -1
"""Stands behind the bytes of a piece, and of a word, that is shorter than the longest."""


def word_vectors_of_bytes(c: ByteWordConfig, w: Mapping[str, Tensor], byte_QM: Tensor) -> Tensor:
    """One vector of each word: learned queries attend to its bytes.

    The keys and values of a query are made of the bytes' embeddings with those of their places in
    the word; a row of its own stands before them, so that a word without bytes has a vector, too.

    Args:
        c: Sizes.
        w: Weights of the codec, by name.
        byte_QM: Bytes (and marks) of each word, at most `longest` of them, NONE behind them.

    Returns:
        ``[Q, width]``.
    """
    Q = len(byte_QM)
    row_QS = F.pad(byte_QM, (1, 0), value=WORD_ROW)
    # What fills a word up borrows row 0, and is put out of sight below.
    x_QSE = w["bytes"][row_QS.clamp(min=0)] + w["places"][: row_QS.shape[1]]
    key_QSND, value_QSND = (
        F.linear(x_QSE, w[name]).unflatten(-1, (c.queries, -1)) for name in ("key", "value")
    )
    # A query belongs to its head and to no byte: what it looks for is learned once for all words.
    score_QNS = torch.einsum("nd,qsnd->qns", w["query"], key_QSND) * w["query"].shape[1] ** -0.5
    seen_QNS = score_QNS.masked_fill(row_QS[:, None] < 0, float("-inf")).softmax(-1)
    pooled_QND = torch.einsum("qns,qsnd->qnd", seen_QNS, value_QSND)
    # One pass of the small width, then up: a wide matrix for each part would weigh as much as the
    # table of embeddings that this replaces.
    y_QE = F.linear(pooled_QND.reshape(Q, c.small), w["mix"])
    inner = F.gelu(F.linear(F.rms_norm(y_QE, (c.small,), eps=c.eps), w["wide"]))
    return F.linear(y_QE + F.linear(inner, w["narrow"]), w["up"])


def word_piece_logits(
    c: ByteWordConfig,
    w: Mapping[str, Tensor],
    state_RH: Tensor,
    place_R: Tensor,
    before_R: Tensor,
) -> Tensor:
    """Logits of one piece of a word, given what is known of all words before it.

    All pieces of a word are read off one state, each with the embedding of its place: no piece
    waits for another. Where the model is chained a piece sees the one before it, too.

    Args:
        c: Sizes.
        w: Weights of the codec, by name.
        state_RH: The backbone's normed state before the word.
        place_R: Number of the piece in its word, from 0.
        before_R: The piece before it; not read at place 0, nor where the model is not chained.

    Returns:
        ``[R, vocab]``.
    """
    x_RH = state_RH + w["steps"][place_R]
    # The head's own rows serve as embeddings of pieces: a second table would undo what the bytes
    # save.
    if c.chained:
        seen_RH = F.linear(w["head"][before_R], w["chain"])
        x_RH = x_RH + torch.where((place_R > 0)[:, None], seen_RH, torch.zeros_like(seen_RH))
    x_RH = x_RH + F.linear(F.gelu(F.linear(x_RH, w["first"])), w["second"])
    return F.linear(F.rms_norm(x_RH, (c.width,), w["last"].to(x_RH.dtype), c.eps), w["head"])


class ByteWordCodec:
    """Cross-attention makes a vector of a word's bytes; pieces of the next word are read off its
    state."""

    called = "Byte2Word"
    unit = "piece"

    def __init__(self, config: ByteWordConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        shapes = byte_codec_shapes(config)
        require_shapes(weights, {**shapes, "pieces": (config.vocab, config.longest)})
        self.w = {name: weights[name].float() for name in shapes}
        self.size = sum(t.numel() for t in self.w.values())
        piece_VL = weights["pieces"].long()
        # Rows of the table are looked up by these: a file must not name any other.
        if not bool(((piece_VL >= NONE) & (piece_VL < config.rows)).all()):
            raise FileError(
                f"pieces holds {int(piece_VL.min())} to {int(piece_VL.max())}: "
                f"bytes of pieces must lie in {NONE} to {config.rows - 1}"
            )
        # Plain lists: a word is a handful of pieces, and is put together at every word's end.
        self.bytes_of = [[x for x in row if x != NONE] for row in piece_VL.tolist()]

    def word_vectors(self, word: Sequence[int]) -> Tensor:
        # Bytes beyond the longest are lost to the reader, as in training; the word is still whole
        # in the text.
        read = [x for piece in word for x in self.bytes_of[piece]][: self.config.longest]
        byte_1M = torch.tensor([read], dtype=torch.long)
        return word_vectors_of_bytes(self.config, self.w, byte_1M)

    def kept_state(self, state_NH: Tensor) -> Tensor:
        return state_NH

    def next_logits(self, texts: Sequence[WordCacheEntry]) -> Tensor:
        state_RH = torch.cat([t.state_NE for t in texts])
        place_R = torch.tensor([len(t.word) for t in texts])
        # Any piece will do at place 0, where none is read.
        before_R = torch.tensor([t.word[-1] if t.word else 0 for t in texts])
        return word_piece_logits(self.config, self.w, state_RH, place_R, before_R)


def byte_word_network(config: ByteWordConfig, weights: Mapping[str, Tensor]) -> WordBackboneNetwork:
    """A Byte2Word network of these weights.

    Args:
        config: Sizes.
        weights: Tensors of a directory, by name.

    Returns:
        The network.

    Raises:
        FileError: A tensor is missing, has another shape, or names bytes that there are not.
    """
    return WordBackboneNetwork(config, weights, ByteWordCodec(config, weights))


def byte_codec_shapes(c: ByteWordConfig) -> dict[str, tuple[int, ...]]:
    """The weights that read and write words, and their shapes."""
    chain: dict[str, tuple[int, ...]] = {"chain": (c.width, c.width)} if c.chained else {}
    return {
        **byte_embedding_shapes(c),
        "steps": (c.longest, c.width),
        "first": (2 * c.width, c.width),
        "second": (c.width, 2 * c.width),
        "last": (c.width,),
        "head": (c.vocab, c.width),
        **chain,
    }


def byte_embedding_shapes(c: ByteWordConfig) -> dict[str, tuple[int, ...]]:
    """The weights that stand in the place of a table of embeddings, and their shapes."""
    return {
        "bytes": (c.rows, c.small),
        "places": (c.longest + 1, c.small),
        "query": (c.queries, c.small // c.queries),
        "key": (c.small, c.small),
        "value": (c.small, c.small),
        "mix": (c.small, c.small),
        "wide": (2 * c.small, c.small),
        "narrow": (c.small, 2 * c.small),
        "up": (c.width, c.small),
    }


def byte_word_tensor_shapes(c: ByteWordConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a directory, and their shapes; `pieces` has the bytes of each piece."""
    pieces: dict[str, tuple[int, ...]] = {"pieces": (c.vocab, c.longest)}
    return byte_codec_shapes(c) | backbone_tensor_shapes(c) | pieces
