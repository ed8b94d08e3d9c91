"""What a run of draft and target one after the other would have taken had both worked at the same time: simulated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Timed:
    """A network whose passes are noted in a log that several share: (name, rows fed, seconds)."""

    network: Any
    name: str
    log: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def forward(self, queries: Sequence[Any]) -> Any:
        start = time.perf_counter()
        answers = self.network.forward(queries)
        self.log.append((self.name, sum(map(len, queries)), time.perf_counter() - start))
        return answers


def rounds(log: Sequence[tuple[str, int, float]], target: str) -> list[tuple[float, float]]:
    """(seconds of the draft, seconds of the target) of each round of one request: the passes up to a target's."""
    out, draft = list[tuple[float, float]](), 0.0
    for name, _, seconds in log:
        if name == target:
            out.append((draft, seconds))
            draft = 0.0
        else:
            draft += seconds
    return out


def overlapped(log: Sequence[tuple[str, int, float]], target: str) -> tuple[float, float]:
    """(seconds one after the other, seconds if both sides of every round ran at once on devices of their own)."""
    both = rounds(log, target)
    return sum(d + t for d, t in both), sum(max(d, t) for d, t in both)


def commits_per_round(alpha: float, gamma: int) -> float:
    """Tokens that a round of PEARL writes in the long run where each drafted token is accepted with probability alpha:
    a pre-verify round one; a post-verify round up to the first rejection, gamma at most.
    Source: the two modes of Liu et al. (2024) as a Markov chain."""
    after = (
        alpha / (alpha + 1.0 - alpha**gamma) if alpha < 1.0 else 1.0
    )  # the share of post-verify rounds
    run = float(gamma) if alpha == 1.0 else (1.0 - alpha**gamma) / (1.0 - alpha)
    return (1.0 - after) + after * run


def tokens_per_round(alpha: float, gamma: int) -> float:
    """Tokens that a round of speculative sampling writes, the one behind the draft included, where each of gamma drafted
    tokens is accepted with probability alpha (1 less the total variation of the two laws). Source: Leviathan et al. (2023)."""
    return float(gamma + 1) if alpha == 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup(alpha: float, gamma: int, cost: float, verify: float = 1.0) -> float:
    """Of speculative sampling over plain decoding. cost: a pass of the draft over one of the target; verify: the target's
    pass over gamma + 1 tokens over its pass over one."""
    return tokens_per_round(alpha, gamma) / (gamma * cost + verify)


def pearl_speedup(alpha: float, gamma: int, cost: float, verify: float = 1.0) -> float:
    """Of PEARL over plain decoding, both models on devices of their own; verify: the target's pass over gamma tokens."""
    return commits_per_round(alpha, gamma) / max(gamma * cost, verify)
