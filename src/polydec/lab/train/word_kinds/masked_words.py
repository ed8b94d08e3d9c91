"""Byte2Word as published: words that are masked are told from the words on both sides of them.

Source: Lee, Guo and Qiu, Word-level representation from bytes for language modeling, 2022, whose network
is of BERT's size. A share of the words of each row is hidden whole; each is told in subword pieces that
are read off its state. The share is BERT's; all sizes are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from polydec.lab.train.data import END
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.tokens import mark_id
from polydec.lab.train.word_kinds.byte2word import (
    TrainableByteWords,
    build_byte2word_network,
    build_byte2word_tokenizer,
)
from polydec.lab.train.word_kinds.hat import hat_word_ends
from polydec.lab.train.word_kinds.protocols import WordModelKind, as_it_is
from polydec.lab.train.word_kinds.word_pooled import (
    pooled_rotary_tables,
    save_word_directory,
    word_places,
)
from polydec.models.nets.byte_words import NONE, word_piece_logits, word_vectors_of_bytes

SHARE = 0.15
"""Of the words of a row those that are hidden."""
TEXTS = 64
"""Held-out texts that are asked, each as far as a row is long."""


class MaskedByteWords(TrainableByteWords):
    """A Byte2Word network whose words see both sides; the vector of the start stands for a hidden one."""

    def draw_hidden_words(self, token_BT: Tensor, dice: torch.Generator) -> Tensor:
        """Draw which words of rows are hidden: a share of them, and one of each row at least.

        Args:
            token_BT: Token ids, BEGIN first, shape ``[B, T]``.
            dice: Decides; it is advanced.

        Returns:
            True for hidden words, shape ``[B, W]``.
        """
        word_BT, _ = word_places(token_BT, self.c.ends, self.c.longest)
        # The word of what stands at t + 1: a row's last piece foretells nothing.
        last_B1 = word_BT[:, -2:-1]
        W = int(last_B1.max()) + 1
        dice_BW = torch.rand(len(token_BT), W, generator=dice)
        dice_BW = dice_BW.masked_fill(torch.arange(W) > last_B1, 2.0)
        # The smallest draw of a row is hidden in any case, so no row teaches nothing.
        return (dice_BW < SHARE) | (dice_BW == dice_BW.amin(1, keepdim=True))

    def hidden_word_logits(
        self, token_BT: Tensor, hidden_BW: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the pieces of hidden words.

        Args:
            token_BT: Token ids, BEGIN first, shape ``[B, T]``.
            hidden_BW: Which words are hidden.

        Returns:
            Logits of N pieces, ``[N, V]``, the right pieces, ``[N]``, and of each the number of its
            word among all words of all rows, ``[N]``.
        """
        c = self.c
        B, W = hidden_BW.shape
        word_BT, place_BT = word_places(token_BT, c.ends, c.longest)
        own_BP = word_BT[:, :-1]
        at_BP = place_BT[:, :-1]
        piece_BP = token_BT[:, 1:]
        row_B1 = torch.arange(B)[:, None]
        piece_BWL = torch.full((B, W, c.longest), NONE)
        piece_BWL[row_B1, own_BP, at_BP] = piece_BP
        # Shorter rows have fewer words than W.
        there_BW = torch.arange(W) <= own_BP[:, -1:]
        state_BWH = self.states_of_words(piece_BWL, there_BW, hidden_BW)
        # Pieces are asked of hidden words alone, each at its place in the word.
        asked_BP = hidden_BW.gather(1, own_BP)
        number_BP = own_BP + row_B1 * W
        state_NH = state_BWH.flatten(0, 1)[number_BP[asked_BP]]
        logits_NV = word_piece_logits(
            c, self.codec_weights, state_NH, at_BP[asked_BP], piece_BP[asked_BP]
        )
        return logits_NV, piece_BP[asked_BP], number_BP[asked_BP]

    def states_of_words(self, piece_BWL: Tensor, there_BW: Tensor, hidden_BW: Tensor) -> Tensor:
        """The backbone's state of each word, given all words but the hidden ones.

        Args:
            piece_BWL: Pieces of each word.
            there_BW: Which words a row has.
            hidden_BW: Which of them are hidden.

        Returns:
            Shape ``[B, W, H]``.
        """
        read_QH = word_vectors_of_bytes(
            self.c, self.codec_weights, self.word_bytes(piece_BWL[there_BW])
        )
        # Words are read one by one, and put back where they stand.
        x_BWH = self.start.new_zeros(*there_BW.shape, self.c.width)
        x_BWH[there_BW] = read_QH.to(x_BWH.dtype)
        # One vector for all that is hidden: it says only that a word stands there.
        x_BWH = torch.where(hidden_BW[..., None], self.start, x_BWH)
        cos_WD, sin_WD = pooled_rotary_tables(self.shape, x_BWH.shape[1])
        for layer in self.layers:
            # All words of a row are seen, before and behind, and none that is not there.
            x_BWH = layer(x_BWH, cos_WD, sin_WD, there_BW[:, None, None])
        return self.norm(x_BWH)


def build_masked_network(spec: WordsSpec, tokenizer: Tokenizer) -> MaskedByteWords:
    """A new network.

    Args:
        spec: Options; the sizes.
        tokenizer: Its tokenizer.

    Returns:
        The network, trainable.
    """
    made = build_byte2word_network(spec, tokenizer)
    return MaskedByteWords(replace(made.c, masked=True), made.pieces.long(), spec.seed)


def masked_word_loss(network: MaskedByteWords, token_BT: Tensor, step: int) -> Tensor:
    """The loss of hidden words.

    Args:
        network: The network.
        token_BT: Token ids, BEGIN first, shape ``[B, T]``.
        step: Step of the training, which names the words.

    Returns:
        Nats of a piece.
    """
    # Rows differ by the run's seed, so the draws need not.
    hidden_BW = network.draw_hidden_words(token_BT, generator_for(0, step, "hidden words"))
    logits_NV, right_N, _ = network.hidden_word_logits(token_BT, hidden_BW)
    return F.cross_entropy(logits_NV.float(), right_N)


@torch.no_grad()
def hidden_words_right(
    network: MaskedByteWords, texts: Sequence[Sequence[int]], length: int
) -> dict[str, float]:
    """How many hidden words of some texts are told right.

    Args:
        network: The network.
        texts: Token ids, BEGIN first; the first TEXTS of them are read.
        length: Tokens of a text that are read.

    Returns:
        `right`: the share of words of which each piece is the likeliest; `nats` of a piece; `words`:
        how many were asked.
    """
    right = 0
    words = 0
    nats = 0.0
    pieces = 0
    for number, ids in enumerate(texts[:TEXTS]):
        token_1T = torch.tensor([ids[: length + 1]])
        # A text of one piece has no word.
        if token_1T.shape[1] < 3:
            continue
        hidden_1W = network.draw_hidden_words(token_1T, generator_for(1, number, "hidden words"))
        logits_NV, right_N, word_N = network.hidden_word_logits(token_1T, hidden_1W)
        # Each piece by itself, as the network tells them.
        nats += float(F.cross_entropy(logits_NV, right_N, reduction="sum"))
        pieces += len(right_N)
        hit_N = logits_NV.argmax(-1) == right_N
        # One wrong piece spoils a word.
        for word in word_N.unique():
            right += int(hit_N[word_N == word].all())
            words += 1
    return {"right": right / max(1, words), "nats": nats / max(1, pieces), "words": words}


def masked_figures(
    network: MaskedByteWords,
    texts: Sequence[Sequence[int]],
    slipped: Sequence[Sequence[int]],
    length: int,
) -> Mapping[str, Any]:
    """What is said of such a model in place of bits a byte.

    Args:
        network: The network.
        texts: Token ids of held-out texts, BEGIN first.
        slipped: The same texts with slips in them.
        length: Tokens of a row.

    Returns:
        `hidden_words` and `hidden_words_with_slips`, see `hidden_words_right`; `embedding_share`: of
        what a table of all pieces has.
    """
    return {
        "hidden_words": hidden_words_right(network, texts, length),
        "hidden_words_with_slips": hidden_words_right(network, slipped, length),
        "embedding_parameters": network.embedding_size,
        "embedding_share": network.embedding_size / (network.c.vocab * network.c.width),
    }


def save_masked_network(
    out: Path, network: MaskedByteWords, tokenizer: Tokenizer, spec: WordsSpec
) -> None:
    """Save a directory, which no engine decodes.

    Args:
        out: Directory to write.
        network: The trained network.
        tokenizer: Its tokenizer.
        spec: Options; not used.
    """
    save_word_directory(out, network, tokenizer, network.c.to_json(eos=mark_id(tokenizer, END)))


def nothing_beside(
    network: MaskedByteWords, texts: Sequence[Sequence[int]], length: int
) -> Mapping[str, Any]:
    """No figures of a law from left to right: there is none.

    Args:
        network: Not read.
        texts: Not read.
        length: Not read.

    Returns:
        Nothing.
    """
    return {}


KIND = WordModelKind(
    build_masked_network,
    as_it_is,
    save_masked_network,
    nothing_beside,
    build_byte2word_tokenizer,
    hat_word_ends,
    masked_word_loss,
    masked_figures,
)
