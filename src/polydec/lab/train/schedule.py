"""How a run of training is driven."""

from __future__ import annotations

import math
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.base.options import above_zero, at_least_one


@dataclass(frozen=True)
class TrainingSchedule:
    """How a run is driven.

    steps: optimiser steps; rate: the highest learning rate of AdamW; warmup: the share of the steps in which it rises
    from 0; decay: the share, at the end, in which it falls to a hundredth, along a cosine (1: cosine from the warmup
    on, less: warmup, stable, decay); muon: learning rate of Muon for the layers' matrices (0: AdamW for all); clip:
    largest gradient norm; save_every: steps between checkpoints; log_every: steps between points of the loss curve;
    judge_every: steps between looks at the part that is set aside.
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

    def factor(self, step: int) -> float:
        """The share of the highest rate that step (0 to steps - 1) takes."""
        rise = self.warmup * self.steps
        fall = self.decay * self.steps
        if step < rise:
            return (step + 1) / (rise + 1)
        left = self.steps - step
        if left > fall:
            return 1.0
        return 0.01 + 0.99 * (0.5 - 0.5 * math.cos(math.pi * left / fall))
