"""What an objective of `polydec train lm` says and does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.lab.train.network import TrainableLlama

IGNORED = -100
"""The label of a position that teaches nothing."""


class LMObjective(Protocol):
    """How rows of text become a loss.

    Pure: all chance comes from `rng`, which is made anew for every step.
    """

    @property
    def marks(self) -> tuple[str, ...]:
        """Special tokens that the tokenizer has for the objective, and that a text never holds."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """Those of the marks at which an answer ends, as at the end of a text.

        The others are never written.
        """
        ...

    def trained_network(self, student: TrainableLlama) -> nn.Module:
        """What is trained: the student, or a module that has it as `student` and more besides."""
        ...

    def batch_loss(
        self,
        network: nn.Module,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
        done: float = 0.0,
    ) -> Tensor:
        """The loss of a batch of rows.

        Args:
            network: What `trained_network` gave.
            batch_BT: Token ids, each row the mark of a beginning and the tokens after it, shape
                ``[B, T]``.
            ids: Ids of the special tokens of the tokenizer, by name.
            rng: Source of all chance; it is advanced.
            done: Share of the run's steps that lie behind, 0 to 1. Default 0.

        Returns:
            A mean in nats.
        """
        ...

    def save_extras(
        self, out: Path, network: nn.Module, unseen_RT: Tensor, result: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Write what was learned besides the model, if anything.

        Args:
            out: Directory of the run, which has the model already.
            network: What `trained_network` gave, trained.
            unseen_RT: Rows that nothing was learned from, shape ``[R, T]``.
            result: What was measured.

        Returns:
            What was measured of that, for training.json.
        """
        ...


class PlainStudent:
    """What an objective that trains the student alone says of the network: there is no more of it."""

    def trained_network(self, student: TrainableLlama) -> TrainableLlama:
        return student

    def save_extras(
        self, out: Path, network: nn.Module, unseen_RT: Tensor, result: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Write nothing: the model is all there is.

        Args:
            out: Directory of the run.
            network: The student.
            unseen_RT: Rows that nothing was learned from, shape ``[R, T]``.
            result: What was measured.

        Returns:
            Nothing.
        """
        return {}


@dataclass(frozen=True)
class LearnedRow:
    """Tokens to read, and what is learned at each.

    Attributes:
        token_ids: Token ids.
        labels: The token to predict at each place, or IGNORED.
    """

    token_ids: tuple[int, ...]
    labels: tuple[int, ...]


class AnswerObjective(Protocol):
    """How a question with its answer becomes rows to learn.

    Pure: all chance comes from `rng`, which is made anew for every step.
    """

    @property
    def special_marks(self) -> tuple[str, ...]:
        """Special tokens that the tokenizer has for the objective, and that no answer holds."""
        ...

    def learned_rows(
        self,
        asked: Sequence[int],
        answer: Sequence[int],
        ids: Mapping[str, int],
        rng: np.random.Generator,
    ) -> list[LearnedRow]:
        """The rows of a pair.

        Args:
            asked: Token ids up to the answer.
            answer: Token ids of the answer and its end.
            ids: Ids of the special tokens of the tokenizer, by name.
            rng: Source of all chance; it is advanced.

        Returns:
            One row at least.
        """
        ...


def cross_entropy(
    student: TrainableLlama, inputs_BT: Tensor, labels_BT: Tensor, see_TT: Tensor | None = None
) -> Tensor:
    """The mean negative log-likelihood of the labels.

    Args:
        student: The network.
        inputs_BT: Token ids, shape ``[B, T]``.
        labels_BT: Token id to predict at each position, or IGNORED, shape ``[B, T]``.
        see_TT: True where a row position sees a column position, shape ``[T, T]``; None: as the
            network is made.

    Returns:
        Nats a position that has a label.
    """
    # In float32, whatever the arithmetic of the network.
    logits = student(inputs_BT, None, see_TT).float().flatten(0, 1)
    return F.cross_entropy(logits, labels_BT.flatten(), ignore_index=IGNORED)


def rows_of(rows: list[np.ndarray]) -> Tensor:
    """Rows of one length as a batch, shape ``[B, T]``."""
    # No copy a row: they become one array, and the tensor shares its memory.
    return torch.from_numpy(np.stack(rows))


def mean_row_loss(student: TrainableLlama, rows: Sequence[LearnedRow]) -> Tensor:
    """The mean over rows of each row's mean negative log-likelihood.

    So a row of which little is learned counts as much as others.

    Args:
        student: The network.
        rows: The rows, of any lengths.

    Returns:
        Nats a learned token.
    """
    longest = max(len(row.token_ids) for row in rows)
    # Rows are filled up at their ends, which no earlier position sees.
    inputs_BT = torch.tensor(
        [[*row.token_ids, *[0] * (longest - len(row.token_ids))] for row in rows]
    )
    labels_BT = torch.tensor(
        [[*row.labels, *[IGNORED] * (longest - len(row.labels))] for row in rows]
    )
    # Classes stand second, where torch looks for them.
    logits_BVT = student(inputs_BT).float().transpose(1, 2)
    loss_BT = F.cross_entropy(logits_BVT, labels_BT, ignore_index=IGNORED, reduction="none")
    # By each row's own number of labels first, then over the rows.
    return (loss_BT.sum(1) / (labels_BT != IGNORED).sum(1)).mean()
