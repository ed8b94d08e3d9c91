"""Word-pooled: a word's bytes become a few vectors, and a small decoder spells the next word.

A backbone reads the vectors.

Source: Thawani et al., Learn your tokens: word-pooled tokenization for language modeling, 2023.
Words end with the byte that parts them (a space, a line break) or at `longest` bytes, so what ends
a word is a byte of the text, and the law is one of bytes without an end-of-word mark; that, and all
sizes, are ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.files import replace_file_atomically
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.network import LlamaDecoderLayer, LlamaRMSNorm, LlamaShape
from polydec.lab.train.specs.words import CONTEXT, WordsSpec
from polydec.lab.train.tokens import mark_id
from polydec.lab.train.word_kinds.protocols import PARTS, WordModelKind, as_it_is, files_of
from polydec.models.formats.word_config import WordConfig

NONE = -1
"""Stands behind the bytes of a word that is shorter than the longest."""


class WordPooled(nn.Module):
    """A word-pooled network, as the module describes it.

    Parameters have the names of its directory (models/nets/words.py).
    """

    def __init__(self, c: WordConfig, seed: int) -> None:
        super().__init__()
        self.c = c
        self.small, self.large = word_layer_shapes(c)
        # The global generator is put back: a network must not change what a program draws later.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed_tokens = nn.Embedding(c.vocab, c.small)
            self.slots = nn.Parameter(torch.randn(c.slots, c.small) * 0.02)
            self.start = nn.Parameter(torch.randn(c.slots, c.width) * 0.02)
            self.encoder, self.decoder = (
                nn.ModuleList(LlamaDecoderLayer(self.small) for _ in range(n))
                for n in (c.encoder, c.decoder)
            )
            self.layers = nn.ModuleList(LlamaDecoderLayer(self.large) for _ in range(c.layers))
            self.up = nn.Linear(c.small, c.width, bias=False)
            self.down = nn.Linear(c.width, c.small, bias=False)
            self.norm = LlamaRMSNorm(c.width, c.eps)
            self.last = LlamaRMSNorm(c.small, c.eps)
            for name, p in self.named_parameters():
                # Projections begin with the size that keeps their output as large as their input.
                if p.ndim == 2 and "proj" in name:
                    nn.init.normal_(p, std=p.shape[1] ** -0.5)
            nn.init.normal_(self.embed_tokens.weight, std=0.02)

    def forward(self, token_BT: Tensor) -> Tensor:
        """Logits of what follows each token, the first of which is BEGIN, shape ``[B, T, V]``."""
        c = self.c
        B = len(token_BT)
        word_BT, offset_BT = word_places(token_BT, c.ends, c.longest)
        W = int(word_BT.max()) + 1
        L = c.longest
        n = c.slots
        row_B1 = torch.arange(B)[:, None]
        # The bytes of each word, at most L of them; what follows token t is byte t + 1.
        byte_BWL = torch.full((B, W, L), NONE)
        byte_BWL[row_B1, word_BT[:, :-1], offset_BT[:, :-1]] = token_BT[:, 1:]
        # rows have unequally many words: what is inside of words runs for those that are there
        there_BW = torch.arange(W) <= word_BT[:, -1:]
        byte_QL = byte_BWL[there_BW]
        pooled_BWNE = self.slots.new_zeros(B, W, n, c.small)
        pooled_BWNE[there_BW] = self.pooled_words(byte_QL).to(pooled_BWNE.dtype)
        # Q words that are there, in rows of n vectors of the decoder's width.
        state_QNE = self.down(self.read_words(pooled_BWNE))[there_BW]
        # A word's decoder reads n vectors of all words before, then its own bytes; the last one
        # predicts nothing.
        x_QSE = torch.cat([state_QNE, self.byte_embeddings(byte_QL)], 1)[:, :-1]
        cos_SD, sin_SD = pooled_rotary_tables(self.small, x_QSE.shape[1])
        for layer in self.decoder:
            x_QSE = layer(x_QSE, cos_SD, sin_SD)
        # Number of each word among those that are there.
        number_BW = (there_BW.flatten().cumsum(0) - 1).view(B, W)
        # The vector before byte `offset` of a word predicts it.
        out_BTE = x_QSE[number_BW.gather(1, word_BT), n - 1 + offset_BT]
        return F.linear(self.last(out_BTE), self.embed_tokens.weight)

    def byte_embeddings(self, byte_QL: Tensor) -> Tensor:
        """Embeddings of bytes; those of filled-up places are never seen."""
        return self.embed_tokens(byte_QL.clamp(min=0))

    def pooled_words(self, byte_QL: Tensor) -> Tensor:
        """The vectors of each word, of its own bytes alone, shape ``[Q, n, E]``."""
        n = self.c.slots
        known_QL = byte_QL >= 0
        own_QNE = self.slots.expand(len(byte_QL), -1, -1)
        # The n slots stand before the bytes, and become the word's vectors.
        x_QSE = torch.cat([own_QNE, self.byte_embeddings(byte_QL)], 1)
        see_QS = F.pad(known_QL, (n, 0), value=True)
        cos_SD, sin_SD = pooled_rotary_tables(self.small, x_QSE.shape[1])
        for layer in self.encoder:
            x_QSE = layer(x_QSE, cos_SD, sin_SD, see_QS[:, None, None])
        return x_QSE[:, :n]

    def read_words(self, pooled_BWNE: Tensor) -> Tensor:
        """What the backbone makes of all that stands before each word, shape ``[B, W, n, H]``."""
        B, W, n, _ = pooled_BWNE.shape
        read_BPH = self.up(pooled_BWNE[:, :-1]).flatten(1, 2)
        # Moved by one word: learned vectors stand before the first, the last word is not read.
        x_BPH = torch.cat([self.start.expand(B, -1, -1), read_BPH], 1)
        cos_PD, sin_PD = pooled_rotary_tables(self.large, x_BPH.shape[1])
        for layer in self.layers:
            x_BPH = layer(x_BPH, cos_PD, sin_PD)
        return self.norm(x_BPH).unflatten(1, (W, n))


def word_places(token_BT: Tensor, ends: Sequence[int], longest: int) -> tuple[Tensor, Tensor]:
    """For what follows each token: the number of its word, and its place in the word.

    Args:
        token_BT: Token ids, the first of a row before its first word.
        ends: Tokens that end a word.
        longest: Tokens of a word, which ends there at the latest.

    Returns:
        Two tensors of the shape of `token_BT`.
    """
    word = torch.zeros_like(token_BT)
    offset = torch.zeros_like(token_BT)
    ends_BT = torch.isin(token_BT, torch.tensor(ends))
    # A word ends after an end, or when it is as long as a word may be.
    for t in range(1, token_BT.shape[1]):
        over = ends_BT[:, t] | (offset[:, t - 1] + 1 >= longest)
        word[:, t] = word[:, t - 1] + over
        offset[:, t] = torch.where(over, 0, offset[:, t - 1] + 1)
    return word, offset


def word_layer_shapes(c: WordConfig) -> tuple[LlamaShape, LlamaShape]:
    """The sizes of a layer inside a word, and of one of the backbone."""
    return (
        LlamaShape(c.vocab, c.small, 1, c.small // 32, c.small // 32, 3 * c.small, c.context),
        LlamaShape(c.vocab, c.width, 1, c.width // 32, c.width // 32, 3 * c.width, c.context),
    )


def pooled_rotary_tables(s: LlamaShape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the positions 0 to length - 1.

    Args:
        s: Head size and base.
        length: Positions.

    Returns:
        Two tensors of shape ``[length, head]``.
    """
    inverse = s.theta ** (-torch.arange(0, s.head, 2).double() / s.head)
    angle = torch.outer(torch.arange(length).double(), inverse).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def build_word_pooled_network(spec: WordsSpec, tokenizer: Tokenizer) -> WordPooled:
    """A new word-pooled network.

    Args:
        spec: Options; the sizes.
        tokenizer: Tokenizer of bytes.

    Returns:
        The network, trainable.
    """
    # A word ends at these signs, each of which is one token.
    ends = tuple(tokenizer.encode(x, add_special_tokens=False).ids[0] for x in PARTS)
    begin, end = (mark_id(tokenizer, mark) for mark in (BEGIN, END))
    config = WordConfig(
        tokenizer.get_vocab_size(),
        begin,
        (*ends, end),
        spec.width,
        spec.layers,
        spec.width // 2 // 32 * 32,
        spec.slots,
        spec.longest,
        context=CONTEXT,
    )
    return WordPooled(config, spec.seed)


def save_word_pooled_network(
    out: Path, network: WordPooled, tokenizer: Tokenizer, spec: WordsSpec
) -> None:
    """Save a directory whose law the engine has in models/nets/words.py.

    Args:
        out: Directory to write.
        network: The trained network.
        tokenizer: Its tokenizer.
        spec: Options; not used.
    """
    save_word_directory(out, network, tokenizer, network.c.to_json(eos=mark_id(tokenizer, END)))


def save_word_directory(
    out: Path, network: nn.Module, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> None:
    """Write weights, tokenizer and config, each file at once.

    Args:
        out: Directory to write.
        network: The trained network.
        tokenizer: Its tokenizer.
        config: Content of config.json.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().contiguous() for k, v in network.state_dict().items()}
    replace_file_atomically(
        out / "model.safetensors", lambda at: save_file(weights, at, metadata={"format": "pt"})
    )
    for name, value in {**files_of(tokenizer), "config.json": config}.items():
        if isinstance(value, str):
            text = value
        else:
            text = json.dumps(value, indent=2) + "\n"
        replace_file_atomically(
            out / name, lambda at, text=text: Path(at).write_text(text, encoding="utf-8")
        )


@torch.no_grad()
def backbone_position_figures(
    network: WordPooled, texts: Sequence[Sequence[int]], length: int
) -> Mapping[str, Any]:
    """How many positions the backbone runs for each byte.

    Args:
        network: The network.
        texts: Token ids of held-out texts, BEGIN first.
        length: Tokens of a row.

    Returns:
        `backbone_positions_a_byte`.
    """
    rows = [ids[: length + 1] for ids in texts if len(ids) > 64][:32]
    c = network.c
    words = sum(int(word_places(torch.tensor([ids]), c.ends, c.longest)[0].max()) for ids in rows)
    count = sum(len(ids) - 1 for ids in rows)
    return {"backbone_positions_a_byte": network.c.slots * words / max(1, count)}


KIND = WordModelKind(
    build_word_pooled_network, as_it_is, save_word_pooled_network, backbone_position_figures
)
