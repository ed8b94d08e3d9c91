"""The depth that has written most tokens a millisecond so far, and now and then another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

PulledRound = tuple[int, float]
"""Tokens that a round wrote, and the milliseconds that it cost."""


@dataclass(frozen=True)
class DepthRewards:
    """What each depth has brought in a text, and which one is in use.

    Attributes:
        pulled: Of each arm the rounds of it that are remembered, the oldest first.
        arm: Index of the arm of the next round.
        rounds: Rounds so far.
    """

    pulled: tuple[tuple[PulledRound, ...], ...]
    arm: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class EpsilonGreedyPolicy:
    """An ε-greedy bandit whose arms are depths.

    Each depth is tried once, in the order of `depths`. From then on the next round has the depth
    whose remembered rounds wrote most tokens a millisecond, or, with probability `epsilon`, any of
    them. Depth 0 is plain decoding. Milliseconds are those of a table that was measured before, so
    no budget depends on a clock; which rounds explore is drawn by their number.

    Attributes:
        costs: Measured costs of passes and of the draft model.
        depths: The arms: levels of a draft, ascending, 0 to 64 each. Default 0, 1, 2, 4, 8.
        epsilon: How often any arm is taken in place of the best one, 0 to 1. Default 0.1.
        window: How many rounds of each arm are remembered, at least 1. Default 16.
        context: Tokens in the cache for which a pass is priced, 0 or more. Default 256.

    Exact: law: the budget depends on what was committed before.
    Reduces to: `fixed` where there is one arm; plain decoding where that is depth 0.
    Source: the ε-greedy bandits over configurations of drafts in Hu et al., "Taming the long-tail"
    (TLT, 2025), which take rewards from the clock and keep a bandit for each size of batch.
    """

    costs: PassCosts
    depths: tuple[int, ...] = (0, 1, 2, 4, 8)
    epsilon: float = 0.1
    window: int = 16
    context: int = 256

    def __post_init__(self) -> None:
        if not self.depths or list(self.depths) != sorted({*self.depths}):
            raise RequestError(f"depths is {self.depths}: it must hold one or more, ascending")
        if not 0 <= self.depths[0] <= self.depths[-1] <= 64:
            raise RequestError(f"depths is {self.depths}: each must lie in 0 to 64")
        if not 0.0 <= self.epsilon <= 1.0:
            raise RequestError(f"epsilon is {self.epsilon}: it must lie in 0 to 1")
        if self.window < 1:
            raise RequestError(f"window is {self.window}: it must be at least 1")
        if self.context < 0:
            raise RequestError(f"context is {self.context}: it must be at least 0")

    def start_state(self) -> DepthRewards:
        return DepthRewards(((),) * len(self.depths))

    def draft_budget(self, state: DepthRewards) -> DraftBudget:
        depth = self.depths[state.arm]
        return DraftBudget(depth, depth)

    def observe_round(self, state: DepthRewards, draft: Draft, verdict: Verdict) -> DepthRewards:
        """Reward the arm of this round, and choose that of the next one.

        Args:
            state: State before this round.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            Another record with this round in it.
        """
        drafted = sum(map(len, draft.children))
        # The round cost a pass over the root and all drafted nodes, and one token of the draft
        # model a level.
        ms = self.costs.request_share(1 + drafted, 1, self.context)
        ms += max(draft.depth) * self.costs.draft_ms
        kept = (*state.pulled[state.arm], (len(verdict.path) + 1, ms))[-self.window :]
        pulled = (*state.pulled[: state.arm], kept, *state.pulled[state.arm + 1 :])
        rounds = state.rounds + 1
        return replace(state, pulled=pulled, arm=self._next_arm(pulled, rounds), rounds=rounds)

    def _next_arm(self, pulled: Sequence[Sequence[PulledRound]], rounds: int) -> int:
        """The arm of round number `rounds`."""
        arms = range(len(pulled))
        untried = [arm for arm in arms if not pulled[arm]]
        if untried:
            return untried[0]
        # Streams of its own: no draw of the text hangs on them, and the same text explores alike.
        rng = Rng.of_choice(0).child_stream("epsilon-greedy", rounds)
        if rng.child_stream("explore").draw_bernoulli(self.epsilon):
            return int(rng.child_stream("arm").draw_uniform() * len(pulled))
        return max(arms, key=lambda arm: _tokens_per_ms(pulled[arm]))


def _tokens_per_ms(pulled: Sequence[PulledRound]) -> float:
    """Of these rounds together."""
    return sum(tokens for tokens, _ in pulled) / sum(ms for _, ms in pulled)
