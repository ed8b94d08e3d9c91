"""The baseline: an n-gram model with interpolated Kneser-Ney smoothing.

Source: Kneser and Ney, 1995; Chen and Goodman, 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polydec.base.errors import RequestError


@dataclass(frozen=True)
class KneserNeyLevel:
    """The statistics of one order.

    Attributes:
        key: Keys of the n-grams, ascending.
        mass: Discounted mass of each n-gram: (count - D) / total of its context.
        context: Keys of the contexts, ascending.
        back: Share of each context that goes to the next lower order: D x number of different
            followers / total.
    """

    key: np.ndarray
    mass: np.ndarray  # (count - D) / total of the context
    context: np.ndarray
    back: np.ndarray  # D x number of different followers / total


@dataclass(frozen=True)
class NGram:
    """An n-gram model with interpolated Kneser-Ney smoothing.

    After any context the probabilities of all tokens sum to 1. The highest order counts
    occurrences, every lower one different left neighbours. Each order has one discount, D = n1 /
    (n1 + 2 n2). The lowest order falls back to the uniform law.

    Attributes:
        order: Tokens of the longest n-grams.
        size: Tokens of the vocabulary.
        levels: Statistics of each order, order 1 first.
    """

    order: int
    size: int
    levels: tuple[KneserNeyLevel, ...]  # order 1 first

    @staticmethod
    def train_counts(streams: Sequence[np.ndarray], size: int, order: int = 5) -> NGram:
        """Count n-grams and smooth them.

        Args:
            streams: Arrays of token ids below `size`; n-grams do not cross from one to the next.
            size: Tokens of the vocabulary.
            order: Tokens of the longest n-grams. Order x bits of the vocabulary must stay within 62
                (order 5: up to 4,096 tokens). Default 5.

        Returns:
            The model.

        Raises:
            RequestError: The order is out of range, or every stream is shorter than it.
        """
        bits = token_bit_width(size)
        if order < 1 or order * bits > 62:
            raise RequestError(
                f"order is {order}: with {size} tokens it must lie in 1 to {62 // bits}"
            )
        if not streams or all(len(s) < order for s in streams):
            raise RequestError(f"streams are shorter than order ({order}): nothing to count")
        keys, counts = np.unique(
            np.concatenate([packed_ngram_keys(s, order, bits) for s in streams]), return_counts=True
        )
        levels: list[KneserNeyLevel] = []
        for n in range(order, 0, -1):
            levels.append(smooth_ngram_counts(keys, counts, bits))
            # Without its first token each different n-gram counts once: the number of different
            # left neighbours.
            keys, counts = np.unique(keys & ((1 << bits * (n - 1)) - 1), return_counts=True)
        return NGram(order, size, tuple(reversed(levels)))

    def stream_logprobs(self, stream: np.ndarray) -> np.ndarray:
        """The log-probability of every token of `stream` after the tokens before it, in nats.

        The first order - 1 tokens have none.
        """
        bits = token_bit_width(self.size)
        count = len(stream) - self.order + 1
        p = np.full(count, 1.0 / self.size)
        # p_n = mass_n + back_n p_(n-1), from the uniform law upwards. A context that was never met
        # passes all mass down.
        for n, level in enumerate(self.levels, 1):
            key = packed_ngram_keys(stream[self.order - n :], n, bits)
            mass = lookup_sorted_keys(level.key, level.mass, key, 0.0)
            p = mass + lookup_sorted_keys(level.context, level.back, key >> bits, 1.0) * p
        return np.log(p)

    def next_token_law(self, context: Sequence[int]) -> np.ndarray:
        """The probabilities of all tokens after `context` (at least order - 1 tokens)."""
        tail = list(context)[len(context) - self.order + 1 :]
        return np.exp([self.stream_logprobs(np.array([*tail, x]))[0] for x in range(self.size)])


def token_bit_width(size: int) -> int:
    """Bits that hold any token id below `size`."""
    return max(1, (size - 1).bit_length())


def packed_ngram_keys(stream: np.ndarray, n: int, bits: int) -> np.ndarray:
    """Pack every n neighbouring tokens into one number, the last token lowest.

    Args:
        stream: Token ids.
        n: Tokens of an n-gram.
        bits: Bits of a token.

    Returns:
        Keys in order, int64; none where the stream is shorter than n.
    """
    wide = stream.astype(np.int64)
    count = max(0, len(wide) - n + 1)
    out = np.zeros(count, dtype=np.int64)
    for i in range(n):
        out = (out << bits) | wide[i : i + count]
    return out


def smooth_ngram_counts(keys: np.ndarray, counts: np.ndarray, bits: int) -> KneserNeyLevel:
    """Turn the counts of one order into discounted masses.

    Args:
        keys: Keys of the n-grams, ascending.
        counts: Count of each.
        bits: Bits of a token.

    Returns:
        The statistics of the order.
    """
    ones = int((counts == 1).sum())
    twos = int((counts == 2).sum())
    # The estimate needs n-grams that were met once and twice; small texts may lack them.
    if ones and twos:
        discount = ones / (ones + 2 * twos)
    else:
        discount = 0.5
    # The context is the key without its lowest token, so equal contexts are neighbours.
    context, start, followers = np.unique(keys >> bits, return_index=True, return_counts=True)
    total = np.add.reduceat(counts, start)
    return KneserNeyLevel(
        keys,
        (counts - discount) / np.repeat(total, followers),
        context,
        discount * followers / total,
    )


def lookup_sorted_keys(
    keys: np.ndarray, values: np.ndarray, wanted: np.ndarray, otherwise: float
) -> np.ndarray:
    """Look up values by key.

    Args:
        keys: Keys, ascending.
        values: Value of each key.
        wanted: Keys to look up.
        otherwise: Value of a key that is not there.

    Returns:
        One value for each wanted key.
    """
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], otherwise)
