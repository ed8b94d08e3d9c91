"""Every token from those before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from polydec.lab.train.objectives.protocols import PlainStudent, cross_entropy


@dataclass(frozen=True)
class NextToken(PlainStudent):
    """The mean of -log p(token | all before it)."""

    marks = ()
    ends = ()

    def batch_loss(
        self,
        network: nn.Module,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
        done: float = 0.0,
    ) -> Tensor:
        """The mean negative log-likelihood of every next token.

        Args:
            network: The student.
            batch_BT: Token ids, BEGIN first, shape ``[B, T]``.
            ids: Not used.
            rng: Not used: nothing is drawn.
            done: Not used: all steps are alike. Default 0.

        Returns:
            Nats a token.
        """
        # Each input predicts the token after it.
        return cross_entropy(network, batch_BT[:, :-1], batch_BT[:, 1:])  # pyright: ignore[reportArgumentType]
