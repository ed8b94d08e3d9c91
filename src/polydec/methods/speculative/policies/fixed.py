"""The same budget for every draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class FixedPolicy:
    """The same budget for every draft.

    Attributes:
        depth: Levels of a draft, 0 to 1024. Default 4.
        nodes: Nodes in all, the root left out, 0 to 1024. None: as many as depth.

    Exact: law: the budget depends on nothing.
    Reduces to: plain decoding at depth 0.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"moved": "it gives the same budget for every draft"}
    depth: int = 4
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 1024:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 1024")
        if self.nodes is not None and not 0 <= self.nodes <= 1024:
            raise RequestError(f"nodes is {self.nodes}: it must lie in 0 to 1024")

    def start_state(self) -> DraftBudget:
        return DraftBudget(self.depth, self.depth if self.nodes is None else self.nodes)

    def draft_budget(self, state: DraftBudget) -> DraftBudget:
        return state

    def observe_round(self, state: DraftBudget, draft: Draft, verdict: Verdict) -> DraftBudget:
        """Leave the state, which is the budget itself.

        Args:
            state: State before this round.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            The same state.
        """
        return state
