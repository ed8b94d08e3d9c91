"""How good a law of bytes is at words: those it would spell right, and text with slips in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import nn

TEXTS = 64
"""Texts that are read for words, each as far as a row is long."""


@torch.no_grad()
def words_right(
    network: nn.Module, texts: Sequence[Sequence[int]], ends: Collection[int], length: int
) -> float:
    """The share of words that greedy decoding would spell right, to the byte that ends them.

    A word is right where each of its bytes is the likeliest after those before it.

    Args:
        network: Gives logits of rows of token ids.
        texts: Token ids, BEGIN first; the first TEXTS of them are read.
        ends: Ids that end a word.
        length: Tokens of a text that are read.

    Returns:
        0 to 1.
    """
    right = 0
    count = 0
    for ids in texts[:TEXTS]:
        token_1T = torch.tensor([ids[: length + 1]])
        guess = network(token_1T[:, :-1])[0].argmax(-1)
        whole = True
        for hit, token in zip((guess == token_1T[0, 1:]).tolist(), token_1T[0, 1:].tolist()):
            # One wrong byte spoils a word.
            whole = whole and hit
            # A last word that is cut off by the row is not counted.
            if token in ends:
                right = right + whole
                count += 1
                whole = True
    return right / max(1, count)


def with_slips(
    texts: Sequence[Sequence[int]], letters: Sequence[int], share: float, seed: int
) -> list[list[int]]:
    """Replace some letters of texts by others.

    Args:
        texts: Token ids.
        letters: Ids of letters, which replace and are replaced.
        share: Share of the letters that is replaced, 0 to 1.
        seed: Seed of the draws.

    Returns:
        The texts, as long as before.
    """
    r = torch.Generator().manual_seed(seed)
    among = set(letters)
    out = list[list[int]]()
    for ids in texts:
        slips = (torch.rand(len(ids), generator=r) < share).tolist()
        drawn = torch.randint(len(letters), (len(ids),), generator=r).tolist()
        out.append([letters[d] if s and x in among else x for x, s, d in zip(ids, slips, drawn)])
    return out
