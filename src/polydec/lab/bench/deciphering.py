"""Deciphering: which symbol of a renamed text stands for which, read off a model's states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.lab.bench.matching import likeliest_matching
from polydec.lab.train.network import TrainableLlama
from polydec.laws.targets.renamed import TokenRenaming

SHRUNK = 0.1
"""Share of a sphere that is mixed into the states' covariance."""


@dataclass(frozen=True, eq=False)
class SymbolReader:
    """How likely a state is one of each symbol: a linear discriminant.

    Attributes:
        symbols: Token ids that were seen, ascending.
        weight_DC: Weights of the states.
        bias_C: Added to what they give.
        share_C: How often each symbol is seen, 0 to 1.
    """

    symbols: tuple[int, ...]
    weight_DC: Tensor
    bias_C: Tensor
    share_C: Tensor

    @staticmethod
    def learn_symbols(state_ND: Tensor, symbol_N: Tensor) -> SymbolReader:
        """Learn from states whose symbols are known.

        Each symbol's states are taken for normal, with one covariance for all.

        Args:
            state_ND: States, shape ``[N, D]``.
            symbol_N: What each of them has read: token ids.

        Returns:
            The reader.
        """
        # Symbols are numbered in the order of their ids.
        found_C, class_N, count_C = symbol_N.unique(return_inverse=True, return_counts=True)
        state_ND = state_ND.double()
        mean_CD = torch.zeros(len(found_C), state_ND.shape[1], dtype=torch.float64)
        mean_CD = mean_CD.index_add(0, class_N, state_ND) / count_C[:, None]
        # How states of one symbol differ is taken to be the same for all symbols.
        apart_ND = state_ND - mean_CD[class_N]
        cov_DD = apart_ND.T @ apart_ND / len(state_ND)
        # A few symbols are seen once: without a sphere their states would be taken for certain.
        sphere = torch.eye(len(cov_DD), dtype=torch.float64) * cov_DD.trace() / len(cov_DD)
        cov_DD = (1 - SHRUNK) * cov_DD + SHRUNK * sphere
        weight_DC = torch.linalg.solve(cov_DD, mean_CD.T)
        share_C = count_C.double() / len(symbol_N)
        # Frequent symbols are likelier before any state is seen.
        bias_C = share_C.log() - 0.5 * (mean_CD.T * weight_DC).sum(0)
        return SymbolReader(tuple(map(int, found_C)), weight_DC, bias_C, share_C)

    def symbol_logprobs(self, state_ND: Tensor) -> Tensor:
        """How likely each state has read each symbol, log-probabilities, shape ``[N, C]``."""
        return (state_ND.double() @ self.weight_DC + self.bias_C).log_softmax(-1)


@torch.no_grad()
def states_of_layers(network: TrainableLlama, token_T: Tensor) -> Tensor:
    """What leaves each layer at each token, side by side.

    Args:
        network: The model.
        token_T: Token ids.

    Returns:
        Shape ``[T, layers * width]``.
    """
    trunk = network.model
    x_1TH = trunk.embed_tokens(token_T[None])
    T = len(token_T)
    states = list[Tensor]()
    for layer in trunk.layers:
        x_1TH = layer(x_1TH, trunk.cos[:T], trunk.sin[:T])
        states.append(x_1TH[0])
    return torch.cat(states, -1)


def read_names(
    reader: SymbolReader, name_T: Sequence[int], log_chance_TC: Tensor
) -> dict[int, int]:
    """Which symbol each name of a text stands for: the likeliest matching.

    Args:
        reader: Learned from texts whose symbols are known.
        name_T: The text, of names; fewer different ones than the reader knows symbols.
        log_chance_TC: How likely each of them is each symbol.

    Returns:
        The symbol of each name of the text.
    """
    # A name that is not in the text says nothing of itself.
    names = sorted(set(name_T))
    if len(names) > len(reader.symbols):
        raise RequestError(
            f"a text has {len(names)} different tokens, and the texts that were learned from "
            f"{len(reader.symbols)}: give more texts"
        )
    row_T = torch.tensor([names.index(x) for x in name_T])
    score_RC = torch.zeros(len(names), len(reader.symbols), dtype=torch.float64)
    # Places of one name speak together, as if each were seen by itself.
    score_RC.index_add_(0, row_T, log_chance_TC.double())
    columns = likeliest_matching(score_RC.numpy())
    return {name: reader.symbols[c] for name, c in zip(names, columns, strict=True)}


@dataclass(frozen=True, eq=False)
class DecipheredText:
    """A text that was renamed, and what was read.

    Attributes:
        name_T: The text under its names.
        read_T: What was read in their place.
        right: Share of the text that was read right, 0 to 1.
        by_counts: The same by how often each name stands in the text alone.
    """

    name_T: tuple[int, ...]
    read_T: tuple[int, ...]
    right: float
    by_counts: float


def learn_reader(
    network: TrainableLlama,
    texts: Sequence[Sequence[int]],
    rename: Callable[[int], TokenRenaming],
) -> SymbolReader:
    """Learn which states read which symbols, from texts that are renamed each its own way.

    What a symbol is called tells nothing then: only its use does.

    Args:
        network: The model.
        texts: Token ids, the begin mark first.
        rename: The renaming of a text by its number.

    Returns:
        The reader.
    """
    states = list[Tensor]()
    symbols = list[int]()
    for number, text in enumerate(texts):
        named = torch.tensor(rename(number).rename_tokens(text))
        # The mark before a text is no symbol.
        states.append(states_of_layers(network, named)[1:])
        symbols += text[1:]
    return SymbolReader.learn_symbols(torch.cat(states), torch.tensor(symbols))


def decipher_text(
    network: TrainableLlama,
    reader: SymbolReader,
    text: Sequence[int],
    renaming: TokenRenaming,
) -> DecipheredText:
    """Rename a text, and read off which name stands for which symbol.

    Args:
        network: The model.
        reader: Learned from other texts.
        text: Token ids, the begin mark first.
        renaming: Of all tokens.

    Returns:
        What was read.
    """
    # The model sees names alone; the text itself only judges what was read.
    named = renaming.rename_tokens(text)
    name_T = named[1:]
    chance_TC = reader.symbol_logprobs(states_of_layers(network, torch.tensor(named))[1:])
    read = read_names(reader, name_T, chance_TC)
    # Without the model: how often a name stands there, and how often each symbol does elsewhere.
    counted = read_names(reader, name_T, reader.share_C.log().expand(len(name_T), -1))

    def share_right(names: dict[int, int]) -> float:
        return sum(names[n] == x for n, x in zip(name_T, text[1:], strict=True)) / len(name_T)

    return DecipheredText(
        tuple(name_T), tuple(read[n] for n in name_T), share_right(read), share_right(counted)
    )


def rate_lengths(
    network: TrainableLlama,
    reader: SymbolReader,
    texts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    rename: Callable[[int], TokenRenaming],
) -> Iterator[dict[str, Any]]:
    """How much of renamed texts is read right, by how much of them is there.

    Args:
        network: The model.
        reader: Learned from other texts.
        texts: Token ids, the begin mark first, at least as long as the longest length.
        lengths: Tokens that are read, ascending.
        rename: The renaming of a text by its number.

    Yields:
        By length the mean share that is read right, with its 95 % interval over texts, and the
        same by counts alone.
    """
    for length in lengths:
        done = [
            decipher_text(network, reader, text[: length + 1], rename(number))
            for number, text in enumerate(texts)
        ]
        gain_N = torch.tensor([d.right - d.by_counts for d in done], dtype=torch.float64)
        half = 1.96 * float(gain_N.std()) / math.sqrt(len(done)) if len(done) > 1 else 0.0
        yield {
            "tokens": length,
            "right": round(sum(d.right for d in done) / len(done), 4),
            "by_counts": round(sum(d.by_counts for d in done) / len(done), 4),
            "gain": round(float(gain_N.mean()), 4),
            "interval": (
                round(float(gain_N.mean()) - half, 4),
                round(float(gain_N.mean()) + half, 4),
            ),
        }
