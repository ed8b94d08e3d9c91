"""How a run of training is driven."""

from __future__ import annotations

import math
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.base.options import above_zero, at_least_one


@dataclass(frozen=True)
class TrainingSchedule:
    """How a training run is driven.

    Attributes:
        steps: Optimiser steps.
        rate: The highest learning rate of AdamW.
        warmup: Share of the steps in which the rate rises from 0.
        decay: Share of the steps, at the end, in which it falls to a hundredth along a cosine. At 1
            the cosine follows the warmup; at less, warmup, stable, decay.
        muon: Learning rate of Muon for the layers' matrices; 0: AdamW for all.
        weight_decay: Decoupled weight decay of matrices, 0 or more.
        clip: Largest norm of the gradient.
        save_every: Steps between checkpoints.
        log_every: Steps between points of the loss curve.
        judge_every: Steps between looks at the data that is set aside.
    """

    steps: int = 1000
    rate: float = 3e-3
    warmup: float = 0.03
    decay: float = 0.4
    muon: float = 0.0
    weight_decay: float = 0.05
    clip: float = 1.0
    save_every: int = 100
    log_every: int = 20
    judge_every: int = 50

    def __post_init__(self) -> None:
        at_least_one(self, "steps", "save_every", "log_every", "judge_every")
        for name in ("warmup", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 0 to 1")
        above_zero(self, "rate", "clip")
        for name in ("muon", "weight_decay"):
            if getattr(self, name) < 0:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be at least 0")

    def rate_factor(self, step: int) -> float:
        """The share of the highest rate that a step (0 to steps - 1) takes."""
        rise = self.warmup * self.steps
        fall = self.decay * self.steps
        if step < rise:
            # Never 0, so that the first step moves the weights.
            return (step + 1) / (rise + 1)
        left = self.steps - step
        if left > fall:
            return 1.0
        # From 1 at the begin of the decay to 0.01 at the end.
        return 0.01 + 0.99 * (0.5 - 0.5 * math.cos(math.pi * left / fall))
