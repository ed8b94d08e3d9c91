"""A drafter with a budget of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.protocols import Session
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.methods.speculative.drafters._delegated_guess import DelegatedGuess
from polydec.methods.speculative.loop.protocols import Drafter
from polydec.methods.speculative.loop.types import DraftBudget


@dataclass(frozen=True)
class CappedDrafter:
    """A drafter with at most `depth` levels whatever the budget allows.

    It is for a drafter that is used together with others.

    Attributes:
        drafter: Any drafter.
        depth: Most levels, 0 to 64. Default 4.

    Exact: law, under any verifier under which the drafter is.
    Reduces to: the drafter, where the budget is the smaller one.
    Source: composition.
    """

    drafter: Drafter
    depth: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")

    def open_guess(self, prompt: Sequence[int], session: Session) -> CappedGuess:
        """Begin a sequence of the drafter.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return CappedGuess(self.drafter.open_guess(prompt, session), self)


@dataclass(frozen=True)
class CappedGuess(DelegatedGuess):
    """The drafter's guess under the smaller budget.

    Attributes:
        guess: The drafter's own guess.
        config: The configuration.
    """

    config: CappedDrafter

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose within the smaller budget.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The drafter's draft.
        """
        # The chain or tree may still be wide: only its levels are bounded.
        return await self.guess.propose_draft(
            root, position, replace(budget, depth=min(budget.depth, self.config.depth)), rng
        )
