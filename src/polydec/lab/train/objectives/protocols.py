"""What an objective of `polydec train lm` says and does."""

from __future__ import annotations

from collections.abc import Mapping
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
    ) -> Tensor:
        """The loss of a batch of rows.

        Args:
            network: What `network` gave.
            batch_BT: Token ids, each row the mark of a beginning and the tokens after it, shape
                ``[B, T]``.
            ids: Ids of the special tokens of the tokenizer, by name.
            rng: Source of all chance; it is advanced.

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
            network: What `network` gave, trained.
            unseen_RT: Rows that nothing was learned from, shape ``[R, T]``.
            result: What was measured.

        Returns:
            What was measured of that, for training.json.
        """
        ...


def cross_entropy(student: TrainableLlama, inputs_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """The mean negative log-likelihood of the labels.

    Args:
        student: The network.
        inputs_BT: Token ids, shape ``[B, T]``.
        labels_BT: Token id to predict at each position, or IGNORED, shape ``[B, T]``.

    Returns:
        Nats a position that has a label.
    """
    # In float32, whatever the arithmetic of the network.
    logits = student(inputs_BT).float().flatten(0, 1)
    return F.cross_entropy(logits, labels_BT.flatten(), ignore_index=IGNORED)


def rows_of(rows: list[np.ndarray]) -> Tensor:
    """Rows of one length as a batch, shape ``[B, T]``."""
    return torch.from_numpy(np.stack(rows))
