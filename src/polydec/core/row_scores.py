"""Scores that read other rows: those of other scores, or their own row of log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Self

import torch
from torch import Tensor

from polydec.core.protocols import DraftScores


class LogprobRowScores:
    """What is read of scores that make a row of log-probabilities for each node."""

    __slots__ = ()

    def logprob_row(self, i: int) -> Tensor:
        raise NotImplementedError

    def likeliest_tokens(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Find the likeliest tokens of one row.

        Args:
            i: Node of the draft.
            k: How many tokens; all of them where the vocabulary has fewer.

        Returns:
            Token ids and their log-probabilities, best first.
        """
        row_V = self.logprob_row(i)
        value_K, token_K = row_V.topk(min(k, len(row_V)))
        tokens: list[int] = token_K.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        values: list[float] = value_K.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return tuple(tokens), tuple(values)

    def token_logprobs(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        """Look up log-probabilities of some tokens of one row.

        Args:
            i: Node of the draft.
            tokens: Token ids.

        Returns:
            A log-probability for each token, in the same order.
        """
        row_V = self.logprob_row(i)
        return tuple(float(row_V[x]) for x in tokens)


@dataclass(frozen=True)
class PickedScores:
    """Scores whose rows are rows of other scores.

    Attributes:
        of: For each row the scores that it is read of.
        at: For each row its number in those scores.
    """

    of: Sequence[DraftScores]
    at: Sequence[int]

    @classmethod
    def by_node(cls, of: Sequence[DraftScores]) -> Self:
        """Of scores that all have a row for each node."""
        return cls(of, range(len(of)))

    @classmethod
    def rows_of(cls, scores: DraftScores, at: Sequence[int]) -> Self:
        """Some rows of one.

        Args:
            scores: The scores.
            at: Their rows, in any order.

        Returns:
            These rows.
        """
        return cls([scores] * len(at), at)

    def logprob_row(self, i: int) -> Tensor:
        return self.of[i].logprob_row(self.at[i])

    def log_weights(self, i: int) -> Tensor:
        return self.of[i].log_weights(self.at[i])

    def certain_token(self, i: int) -> int | None:
        return self.of[i].certain_token(self.at[i])

    def likeliest_token(self, i: int) -> int:
        return self.of[i].likeliest_token(self.at[i])

    def likeliest_tokens(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Find the likeliest tokens of one row.

        Args:
            i: Node of the draft.
            k: How many tokens; all of them where the vocabulary has fewer.

        Returns:
            Token ids and their log-probabilities, best first.
        """
        return self.of[i].likeliest_tokens(self.at[i], k)

    def token_logprobs(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        """Look up log-probabilities of some tokens of one row.

        Args:
            i: Node of the draft.
            tokens: Token ids.

        Returns:
            A log-probability for each token, in the same order.
        """
        return self.of[i].token_logprobs(self.at[i], tokens)

    def _parts(self, rows: Sequence[int]) -> list[tuple[DraftScores, list[int]]]:
        """Some rows, those that stand side by side in the same scores together."""
        together = groupby(rows, lambda i: id(self.of[i]))
        parts = [list(part) for _, part in together]
        return [(self.of[part[0]], [self.at[i] for i in part]) for part in parts]

    def topk_rows(self, rows: Sequence[int], k: int) -> Sequence[Sequence[int]]:
        """Find the likeliest tokens of several rows.

        Args:
            rows: Nodes of the draft.
            k: How many tokens of each row.

        Returns:
            For each node its token ids, best first.
        """
        return [row for scores, at in self._parts(rows) for row in scores.topk_rows(at, k)]

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> DraftScores:
        """Read the law that the first layers alone give.

        Args:
            depth: How many layers; it must have been wanted of the scores.
            nodes: Nodes of the draft, in the order of the rows.

        Returns:
            Scores whose row j belongs to ``nodes[j]``.
        """
        parts = [(scores.exit_laws(depth, at), len(at)) for scores, at in self._parts(nodes)]
        return PickedScores(
            [exits for exits, count in parts for _ in range(count)],
            [row for _, count in parts for row in range(count)],
        )

    @property
    def hidden_NH(self) -> Tensor | None:
        parts = [(scores.hidden_NH, at) for scores, at in self._parts(range(len(self.at)))]
        states = [hidden_NH[at] for hidden_NH, at in parts if hidden_NH is not None]
        if states and len(states) == len(parts):
            return torch.cat(states)
        return None

    @property
    def base(self) -> PickedScores:
        return self._picked_bases

    @cached_property
    def _picked_bases(self) -> PickedScores:
        # Rows of the same scores stay rows of the same scores. Made once: trees ask for each node.
        bases = {id(scores): scores.base for scores in self.of}
        return type(self)([bases[id(scores)] for scores in self.of], self.at)
