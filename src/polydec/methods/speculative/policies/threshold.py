"""Stop drafting below a probability that follows the acceptance rate."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class ThresholdPolicy:
    """Stop drafting below a probability tau that follows the acceptance rate.

    Nothing is drafted below a draw that the draft gave less than tau, and tau moves so that `rate`
    of what is drafted is accepted. After each draft ar <- keep_rate ar + (1 - keep_rate) accepted /
    drafted. Then tau' is tau + step where ar < rate, tau where the draft went the full depth, tau -
    step otherwise; and tau <- keep tau + (1 - keep) tau', held in 0 to 1. A greedy draft's token
    counts with the probability that its model gave it before shaping.

    Attributes:
        threshold: The first tau, 0 to 1. Default 0.8.
        rate: Acceptance rate to aim at, 0 to 1. Default 0.9.
        depth: Most levels, 0 to 64. Default 12.
        step: How far tau aims to move after a draft, 0 to 1. Default 0.01.
        keep: Share of the old tau that stays, 0 to 1. Default 0.9.
        keep_rate: Share of the old acceptance rate that stays, 0 to 1. Default 0.5.

    Exact: law: where a draft stops depends on its draws and on earlier rounds; what is kept does
    not.
    Reduces to: `confidence` at step 0; `fixed` at step 0 and threshold 0.
    Source: Zhang et al., "Draft & verify: lossless large language model acceleration via
    self-speculative decoding" (2023).
    """

    threshold: float = 0.8
    rate: float = 0.9
    depth: int = 12
    step: float = 0.01
    keep: float = 0.9
    keep_rate: float = 0.5

    def __post_init__(self) -> None:
        for name in ("threshold", "rate", "step", "keep", "keep_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 0 to 1")
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")

    def start_state(self) -> tuple[float, float]:
        """(tau, acceptance rate so far)."""
        return self.threshold, self.rate

    def draft_budget(self, state: tuple[float, float]) -> DraftBudget:
        return DraftBudget(
            self.depth, self.depth, go_on=lambda depth, q: q >= state[0], graded=True
        )

    def observe_round(
        self, state: tuple[float, float], draft: Draft, verdict: Verdict
    ) -> tuple[float, float]:
        """Move the threshold after this round.

        Args:
            state: tau and the acceptance rate before this round.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            The same two after this round.
        """
        tau, ar = state
        drafted = max(draft.depth)
        if not drafted:
            return state
        # The acceptance rate moves first; the threshold then aims by the new one.
        ar = self.keep_rate * ar + (1.0 - self.keep_rate) * len(verdict.path) / drafted
        if ar < self.rate:
            aim = tau + self.step
        # A draft that was cut by the depth says nothing for a lower threshold.
        elif drafted >= self.depth:
            aim = tau
        else:
            aim = tau - self.step
        return min(1.0, max(0.0, self.keep * tau + (1.0 - self.keep) * aim)), ar
