"""Draft more after a draft that was accepted whole, less after any other."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class AdditivePolicy:
    """Draft deeper after a full acceptance, less deep after any other draft.

    The depth rises by `rise` after a draft of which every level was accepted and falls by `fall`
    after any other; a round without a draft leaves it.

    Attributes:
        first: Levels of the first draft, least to most. Default 5.
        least: Fewest levels, 1 to most. Default 1.
        most: Most levels, 1 to 64. Default 16.
        rise: Levels more after a full acceptance, 0 to 64. Default 2.
        fall: Levels fewer after any other draft, 0 to 64. Default 1.
        nodes: Nodes in all, 0 to 1024. None: as many as the depth.

    Exact: law: the budget depends on what was committed before.
    Reduces to: `fixed` where rise and fall are 0, or least equals most.
    Source: the "heuristic" schedule of assisted generation in Hugging Face transformers (Gante,
    2023): 5, +2, -1.
    """

    first: int = 5
    least: int = 1
    most: int = 16
    rise: int = 2
    fall: int = 1
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.most <= 64:
            raise RequestError(f"most is {self.most}: it must lie in 1 to 64")
        if not 1 <= self.least <= self.most:
            raise RequestError(
                f"least is {self.least}: it must lie in 1 to most, which is {self.most}"
            )
        if not self.least <= self.first <= self.most:
            raise RequestError(
                f"first is {self.first}: it must lie in {self.least} to {self.most}, the bounds least and most"
            )
        for name in ("rise", "fall"):
            if not 0 <= getattr(self, name) <= 64:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 0 to 64")
        if self.nodes is not None and not 0 <= self.nodes <= 1024:
            raise RequestError(f"nodes is {self.nodes}: it must lie in 0 to 1024")

    def start_state(self) -> int:
        return self.first

    def draft_budget(self, state: int) -> DraftBudget:
        return DraftBudget(state, state if self.nodes is None else self.nodes)

    def observe_round(self, state: int, draft: Draft, verdict: Verdict) -> int:
        """The depth after this round.

        Args:
            state: Depth before this round, in levels.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            Depth of the next draft, in levels.
        """
        deepest = max(draft.depth)
        # A round without a draft says nothing about the depth.
        if not deepest:
            return state
        # The full depth was accepted: a longer draft might be as well.
        if len(verdict.path) == deepest:
            return min(state + self.rise, self.most)
        return max(state - self.fall, self.least)
