"""Byte2Word: a word is one vector made of its bytes by cross-attention, and is written in pieces.

Source: Lee, Guo and Qiu, Word-level representation from bytes for language modeling, 2022. There a
masked word is told by the words on both sides of it; here the next one by those before it, so that
texts can be written. Words are those of `hat`, whose end mark is the end piece. Number and size of
the queries, the head of pieces and all sizes are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.network import LlamaDecoderLayer, LlamaRMSNorm, LlamaShape
from polydec.lab.train.specs.words import CONTEXT, WordsSpec
from polydec.lab.train.tokens import byte_level_pieces, mark_id, train_tokenizer
from polydec.lab.train.word_kinds.hat import WORD, hat_word_ends, with_word_marks
from polydec.lab.train.word_kinds.protocols import WordModelKind, as_it_is
from polydec.lab.train.word_kinds.word_pooled import (
    pooled_rotary_tables,
    save_word_directory,
    word_places,
)
from polydec.models.formats.byte_word_config import WORD_ROW, ByteWordConfig
from polydec.models.nets.byte_words import (
    NONE,
    byte_codec_shapes,
    byte_embedding_shapes,
    word_piece_logits,
    word_vectors_of_bytes,
)


class TrainableByteWords(nn.Module):
    """A Byte2Word network. Parameters have the names of its directory (models/nets/byte_words.py).

    Args:
        c: Sizes.
        piece_VL: Bytes of each piece, NONE behind them.
        seed: Of the first weights.
    """

    pieces: Tensor

    def __init__(self, c: ByteWordConfig, piece_VL: Tensor, seed: int) -> None:
        super().__init__()
        self.c = c
        # A buffer, so that the directory has it: whoever decodes needs no tokenizer to read words.
        # The narrow type keeps it small beside the weights.
        self.register_buffer("pieces", piece_VL.to(torch.int16))
        self.shape = LlamaShape(
            c.vocab, c.width, 1, c.width // 32, c.width // 32, 3 * c.width, c.context
        )
        # The global generator is put back: a network must not change what a program draws later.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for name, shape in byte_codec_shapes(c).items():
                self.register_parameter(name, nn.Parameter(_first_weights(name, shape)))
            self.start = nn.Parameter(torch.randn(1, c.width) * 0.02)
            self.layers = nn.ModuleList(LlamaDecoderLayer(self.shape) for _ in range(c.layers))
            self.norm = LlamaRMSNorm(c.width, c.eps)
            for name, p in self.named_parameters():
                # Projections begin with the size that keeps their output as large as their input.
                if p.ndim == 2 and "proj" in name:
                    nn.init.normal_(p, std=p.shape[1] ** -0.5)

    @property
    def codec_weights(self) -> Mapping[str, Tensor]:
        """What reads and writes words, by name."""
        return {name: getattr(self, name) for name in byte_codec_shapes(self.c)}

    @property
    def embedding_size(self) -> int:
        """Weights that stand in the place of a table of embeddings."""
        return sum(getattr(self, name).numel() for name in byte_embedding_shapes(self.c))

    def forward(self, token_BT: Tensor) -> Tensor:
        """Logits of what follows each token, the first of which is BEGIN, shape ``[B, T, V]``."""
        c = self.c
        B = len(token_BT)
        word_BT, place_BT = word_places(token_BT, c.ends, c.longest)
        W = int(word_BT.max()) + 1
        row_B1 = torch.arange(B)[:, None]
        # The pieces of each word; what follows token t is piece t + 1.
        piece_BWL = torch.full((B, W, c.longest), NONE)
        piece_BWL[row_B1, word_BT[:, :-1], place_BT[:, :-1]] = token_BT[:, 1:]
        # Rows have unequally many words: only those that are there are read.
        there_BW = torch.arange(W) <= word_BT[:, -1:]
        read_QH = word_vectors_of_bytes(c, self.codec_weights, self.word_bytes(piece_BWL[there_BW]))
        read_BWH = self.start.new_zeros(B, W, c.width)
        read_BWH[there_BW] = read_QH.to(read_BWH.dtype)
        state_BWH = self.read_words(read_BWH)
        # A token's logits are those of the word that the next token belongs to, at its place there.
        state_BTH = state_BWH[row_B1, word_BT]
        logits = word_piece_logits(
            c, self.codec_weights, state_BTH.flatten(0, 1), place_BT.flatten(), token_BT.flatten()
        )
        return logits.unflatten(0, token_BT.shape)

    def word_bytes(self, piece_QL: Tensor) -> Tensor:
        """The bytes of words by their pieces, at most `longest` of each, NONE behind them."""
        L = self.c.longest
        # Negative numbers would be taken as rows from the end.
        byte_QLL = self.pieces.long()[piece_QL.clamp(min=0)]
        byte_QLL = byte_QLL.masked_fill(piece_QL[..., None] < 0, NONE)
        byte_QN = byte_QLL.flatten(1)
        # A byte stands behind all that are there before it; what lies beyond the longest is cut.
        there_QN = byte_QN >= 0
        at_QN = (there_QN.cumsum(1) - 1).clamp(max=L)
        out = torch.full((len(piece_QL), L + 1), NONE)
        row_Q1 = torch.arange(len(piece_QL))[:, None].expand_as(at_QN)
        out[row_Q1[there_QN], at_QN[there_QN]] = byte_QN[there_QN]
        # The last column caught all that was cut.
        return out[:, :L]

    def read_words(self, read_BWH: Tensor) -> Tensor:
        """What the backbone makes of all that stands before each word, shape ``[B, W, H]``."""
        # Moved by one word: a learned vector stands before the first, the last word is not read.
        x_BWH = torch.cat([self.start.expand(len(read_BWH), 1, -1), read_BWH[:, :-1]], 1)
        cos_WD, sin_WD = pooled_rotary_tables(self.shape, x_BWH.shape[1])
        for layer in self.layers:
            x_BWH = layer(x_BWH, cos_WD, sin_WD)
        return self.norm(x_BWH)


def _first_weights(name: str, shape: tuple[int, ...]) -> Tensor:
    """Weights that training begins with. name: of the tensor."""
    if name == "last":
        return torch.ones(shape)
    # Embeddings of bytes and queries are as large as what a norm makes; those of pieces are small,
    # so that all pieces are about as likely at first.
    scales = {"bytes": 1.0, "places": 1.0, "query": 1.0, "steps": 0.02, "head": 0.02, "chain": 0.02}
    return torch.randn(shape) * scales.get(name, math.sqrt(1 / shape[-1]))


def build_byte2word_tokenizer(spec: WordsSpec, texts: Sequence[str]) -> Tokenizer:
    """A byte-level BPE tokenizer, learned from the texts, with an end mark behind every word.

    Args:
        spec: Options; `vocab` is the number of pieces and marks.
        texts: The texts that are trained on.

    Returns:
        The tokenizer. No piece goes over the end of a word.
    """
    return with_word_marks(train_tokenizer(texts, spec.vocab, (WORD,)))


def bytes_of_pieces(tokenizer: Tokenizer, longest: int) -> tuple[Tensor, int]:
    """The bytes of each piece.

    Args:
        tokenizer: A byte-level tokenizer with marks.
        longest: Bytes that are kept of a piece.

    Returns:
        Rows of the byte table, shape ``[V, longest]``, NONE behind them, and the number of rows of
        that table. Marks have a row each; the end mark of a word has no byte.
    """
    marks = sorted(tokenizer.get_added_tokens_decoder())
    # By rank: ids of marks may lie anywhere in a vocabulary.
    rows = {i: WORD_ROW + 1 + n for n, i in enumerate(marks)}
    out = torch.full((tokenizer.get_vocab_size(), longest), NONE)
    for i, piece in enumerate(byte_level_pieces(tokenizer)):
        if piece is not None:
            kept = list(piece[:longest])
        else:
            kept = [] if tokenizer.id_to_token(i) == WORD else [rows[i]]
        out[i, : len(kept)] = torch.tensor(kept, dtype=torch.long)
    return out, WORD_ROW + 1 + len(marks)


def build_byte2word_network(spec: WordsSpec, tokenizer: Tokenizer) -> TrainableByteWords:
    """A new Byte2Word network.

    Args:
        spec: Options; the sizes.
        tokenizer: Its tokenizer.

    Returns:
        The network, trainable.
    """
    piece_VL, rows = bytes_of_pieces(tokenizer, spec.longest)
    config = ByteWordConfig(
        tokenizer.get_vocab_size(),
        mark_id(tokenizer, BEGIN),
        tuple(sorted(hat_word_ends(tokenizer))),
        spec.width,
        spec.layers,
        # Bytes are read in a quarter of the backbone's width, by queries of eight dimensions.
        spec.width // 4,
        spec.width // 32,
        rows,
        spec.longest,
        spec.chained,
        CONTEXT,
    )
    return TrainableByteWords(config, piece_VL, spec.seed)


def save_byte2word_network(
    out: Path, network: TrainableByteWords, tokenizer: Tokenizer, spec: WordsSpec
) -> None:
    """Save a directory whose law the engine has in models/nets/byte_words.py.

    Args:
        out: Directory to write.
        network: The trained network.
        tokenizer: Its tokenizer.
        spec: Options; not used.
    """
    save_word_directory(out, network, tokenizer, network.c.to_json(eos=mark_id(tokenizer, END)))


@torch.no_grad()
def byte2word_figures(
    network: TrainableByteWords, texts: Sequence[Sequence[int]], length: int
) -> Mapping[str, Any]:
    """What the embeddings weigh, and how many positions the backbone runs for each piece.

    Args:
        network: The network.
        texts: Token ids of held-out texts, BEGIN first.
        length: Tokens of a row.

    Returns:
        `embedding_parameters`; `embedding_share`: of what a table of all pieces has; `pieces`:
        pieces and marks of the texts; and `backbone_positions_a_piece`.
    """
    c = network.c
    # Short texts would count their beginnings most; a few dozen texts say the ratio well enough.
    rows = [ids[: length + 1] for ids in texts if len(ids) > 16][:32]
    words = sum(int(word_places(torch.tensor([ids]), c.ends, c.longest)[0].max()) for ids in rows)
    count = sum(len(ids) - 1 for ids in rows)
    return {
        "embedding_parameters": network.embedding_size,
        "embedding_share": network.embedding_size / (c.vocab * c.width),
        "pieces": sum(len(ids) - 1 for ids in texts),
        "backbone_positions_a_piece": words / max(1, count),
    }


KIND = WordModelKind(
    build_byte2word_network,
    as_it_is,
    save_byte2word_network,
    byte2word_figures,
    build_byte2word_tokenizer,
    hat_word_ends,
)
