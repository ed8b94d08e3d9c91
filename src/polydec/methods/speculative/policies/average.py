"""As long a draft as the last ones were, and longer where they were accepted whole."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

State = tuple[int, float, float]
"""The next depth, and the moving averages of the tokens that were drafted and accepted."""


@dataclass(frozen=True)
class MovingAveragePolicy:
    """Draft as long as the average draft, and longer where all of it is accepted on average.

    It has moving averages of how long drafts were and of how much of them was accepted. The next
    draft may be as long as the average one, and longer by `rise` where no less was accepted than
    drafted on average.

    Attributes:
        least: Fewest levels, 1 to most. Default 4.
        most: Most levels, 1 to 64, and levels of the first draft. Default 12.
        rise: Levels more where all is accepted on average, 0 to 64. Default 3.
        rate: Share of the old average that stays, at least 0 and below 1. Both averages begin at 0.
            Default 0.5.

    Exact: law: the budget depends on what was committed before.
    Reduces to: `fixed` where least equals most.
    Source: DiffuSpec (2025), adaptive draft length. There a draft's length ends before the first
    end of text of the drafter's likeliest tokens, which a draft may say (`Draft.natural`); else it
    is that of the draft itself, its end included.
    """

    least: int = 4
    most: int = 12
    rise: int = 3
    rate: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.most <= 64:
            raise RequestError(f"most is {self.most}: it must lie in 1 to 64")
        if not 1 <= self.least <= self.most:
            raise RequestError(
                f"least is {self.least}: it must lie in 1 to most, which is {self.most}"
            )
        if not 0 <= self.rise <= 64:
            raise RequestError(f"rise is {self.rise}: it must lie in 0 to 64")
        if not 0 <= self.rate < 1:
            raise RequestError(f"rate is {self.rate}: it must be at least 0 and below 1")

    def start_state(self) -> State:
        return self.most, 0.0, 0.0

    def draft_budget(self, state: State) -> DraftBudget:
        return DraftBudget(state[0], state[0])

    def observe_round(self, state: State, draft: Draft, verdict: Verdict) -> State:
        """The averages after this round, and the depth that follows from them.

        Args:
            state: Depth, average drafted and average accepted tokens before this round.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            The same three after this round.
        """
        if len(draft) == 1:
            return state
        # A drafter that fills a block says where its text ends naturally; others have drafted as
        # long as they found right.
        if draft.natural is None:
            drafted = max(draft.depth)
        else:
            drafted = draft.natural
        # Exponential moving averages of the length drafted and the length accepted.
        long = self.rate * state[1] + (1 - self.rate) * drafted
        good = self.rate * state[2] + (1 - self.rate) * len(verdict.path)
        # `rise` is added only where all is accepted on average: else a longer draft would be cut
        # short anyway.
        return max(self.least, min(self.most, round(long + self.rise * (good >= long)))), long, good
