"""Hierarchical transformer (HAT): one vector for each word, made of its bytes.

A backbone reads the vectors, and a decoder spells the next word up to its end mark.

Source: Neitemeier et al., Hierarchical autoregressive transformers: combining byte- and word-level
processing for robust, adaptable language models, 2025. A word is what stands between two of its
splits: white space with the letters and signs behind it. Where a word ends is known when white
space follows, so no split moves when a text goes on, and the last word of a prompt is never closed:
its bytes prime the decoder. The encoder reads the end mark too, and a word is closed at `longest`
bytes without one; that, and all sizes but their ratio of 1 to 4, are ours. The network is that of
word-pooled models with one vector a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, normalizers

from polydec.lab.train.data import BEGIN, END, SPECIAL
from polydec.lab.train.specs.words import CONTEXT, WordsSpec
from polydec.lab.train.tokens import mark_id, train_tokenizer
from polydec.lab.train.word_kinds import word_pooled
from polydec.lab.train.word_kinds.protocols import WordModelKind, as_it_is
from polydec.lab.train.word_kinds.word_pooled import WordPooled
from polydec.models.formats.word_config import WordConfig

WORD = "<|word|>"
"""Ends a word; nothing is written for it."""

SPLIT = r"(?<=\S)(?=\s)"
"""Where it stands in a text."""


def build_hat_tokenizer(spec: WordsSpec, texts: Sequence[str]) -> Tokenizer:
    """A tokenizer of bytes that puts an end mark wherever white space follows something else.

    Args:
        spec: Options; not used.
        texts: Not used: nothing is learned.

    Returns:
        The tokenizer.
    """
    return with_word_marks(train_tokenizer([], 256 + len(SPECIAL) + 1, (WORD,)))


def with_word_marks(tokenizer: Tokenizer) -> Tokenizer:
    """Let a tokenizer put its end mark wherever white space follows something else.

    Args:
        tokenizer: One that has the mark; changed in place.

    Returns:
        The same tokenizer.
    """
    # The normaliser inserts the mark as text, so it must be matched in normalised text.
    tokenizer.add_special_tokens([AddedToken(WORD, special=True, normalized=True)])
    tokenizer.normalizer = normalizers.Replace(Regex(SPLIT), WORD)
    return tokenizer


def hat_word_ends(tokens: Tokenizer) -> frozenset[int]:
    """The ids that end a word: the end mark, and the end of a text."""
    return frozenset((mark_id(tokens, WORD), mark_id(tokens, END)))


def build_hat_network(spec: WordsSpec, tokens: Tokenizer) -> WordPooled:
    """A word-pooled network with one vector a word.

    Args:
        spec: Options; the sizes.
        tokens: The tokenizer.

    Returns:
        The network, trainable.
    """
    # One vector a word: a word has one slot.
    config = WordConfig(
        tokens.get_vocab_size(),
        mark_id(tokens, BEGIN),
        tuple(sorted(hat_word_ends(tokens))),
        spec.width,
        spec.layers,
        # The small width is a quarter of the backbone's, in heads of 32.
        max(1, spec.width // 4 // 32) * 32,
        1,
        spec.longest,
        encoder=2,
        decoder=2,
        context=CONTEXT,
    )
    return WordPooled(config, spec.seed)


KIND = WordModelKind(
    build_hat_network,
    as_it_is,
    word_pooled.save_word_pooled_network,
    word_pooled.backbone_position_figures,
    build_hat_tokenizer,
    hat_word_ends,
)
