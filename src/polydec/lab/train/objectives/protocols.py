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
    """How rows of text become a loss. Pure: all chance comes from `rng`, which is made anew for every step."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Special tokens that the tokenizer has for it, and that a text never holds."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """Those of the marks at which an answer ends, as at the end of a text; the others are never written."""
        ...

    def network(self, student: TrainableLlama) -> nn.Module:
        """What is trained: the student, or a module that has it as `student` and more beside it."""
        ...

    def loss(
        self,
        network: nn.Module,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
    ) -> Tensor:
        """A mean in nats over rows, each the mark of a beginning and the tokens behind it. ids: of the marks of a tokenizer."""
        ...

    def save(
        self, out: Path, network: nn.Module, unseen_RT: Tensor, result: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Write what it made beside the model in `out`, if anything; unseen_RT: rows that nothing was learned from. Returns
        what was measured of that."""
        ...


def cross_entropy(student: TrainableLlama, inputs_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean of -log p(label) over the positions that have one, in nats."""
    logits = student(inputs_BT).float().flatten(0, 1)
    return F.cross_entropy(logits, labels_BT.flatten(), ignore_index=IGNORED)


def rows_of(rows: list[np.ndarray]) -> Tensor:
    """Rows of one length as a batch [B, T]."""
    return torch.from_numpy(np.stack(rows))
