"""A trained drafter whose tree costs time by the level, and what asking it has brought."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.economics.calibration import ChanceCalibration
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.loop.protocols import Drafter
from polydec.methods.speculative.loop.types import DraftBudget

BRINGS = (0.61, 0.55, 0.4, 0.36, 0.2, 0.0)
"""Tokens that a drafter brings beside copies and counts which is right in `RIGHT` of its first
tokens, by classes of steps: the best chance of a first token that these know, in six equal parts.
Measured with zoo:smollm2-states on greedy answers to prompts that are there for tuning."""
RIGHT = 0.545
"""How often zoo:smollm2-states is right in the first token, as its file says."""
TRUST = 12.0
FORGET = 64.0
"""Steps that the above is worth; counts of a class are halved at so many."""
FADE = 0.995
"""What is kept of a class's counts in a step in which it was not worth asking, so that one bad
stretch is not for good."""
DEEPEST = 8
MOST = 24
"""Levels and tokens of its tree, at most."""
GOES_ON = 0.5
"""How often a token below a likely path is right, as far as is known before it is named."""


@dataclass(frozen=True)
class PricedTree:
    """A trained drafter, and what its tree costs by the level.

    Raises RequestError where a value lies outside its range.

    Attributes:
        drafter: Grows a tree of certain tokens and honours a budget's floor.
        first_ms: What its first level takes, in milliseconds; at least 0, finite.
        level_ms: What each further level takes, likewise.
        right: In how many of its first tokens it is right, 0 to 1.
        deepest: Levels of its tree, at most.
        most: Tokens of its tree, at most.
    """

    drafter: Drafter
    first_ms: float
    level_ms: float
    right: float = RIGHT
    deepest: int = DEEPEST
    most: int = MOST

    def __post_init__(self) -> None:
        for name in ("first_ms", "level_ms"):
            if not 0.0 <= (ms := getattr(self, name)) < inf:
                raise RequestError(f"{name} is {ms}: it must be finite and at least 0")
        if not 0.0 <= self.right <= 1.0:
            raise RequestError(f"right is {self.right}: it must lie in 0 to 1")

    @staticmethod
    def by_costs(trained: tuple[Drafter, float], costs: PassCosts) -> PricedTree:
        """A trained drafter, priced by measured costs.

        Args:
            trained: The drafter, and how often it is right in its first token.
            costs: Measured costs; where they have none of a tree, it costs nothing.

        Returns:
            The priced drafter.
        """
        return PricedTree(trained[0], *(costs.tree_ms or (0.0, 0.0)), trained[1])

    def expected_gain(self, step: int) -> float:
        """Tokens that asking is expected to bring in a step of this class."""
        # In proportion to how often this drafter is right, from figures of another one.
        return BRINGS[step] * self.right / RIGHT

    def least_ms(self, row_ms: float) -> float:
        """The least that asking costs where it is worth a thought.

        Args:
            row_ms: What one more row of the target's pass costs, in milliseconds.

        Returns:
            Milliseconds of two levels, and of a row to feed.
        """
        return self.first_ms + self.level_ms + row_ms

    def took_ms(self, draft: Draft, depth: int) -> float:
        """What a draft took, in milliseconds.

        Args:
            draft: The draft that was grown.
            depth: Levels that it was requested with.

        Returns:
            The price of its levels, and of one more that was grown in vain unless `depth` ended it.
        """
        # The grower makes one level more than it proposes, unless the depth was reached.
        return self.first_ms + self.level_ms * (min(depth, max(draft.depth) + 1) - 1)

    def tree_budget(self, budget: DraftBudget, saved_ms: float) -> DraftBudget:
        """The budget for the tree: no path goes on that does not pay for a level.

        Args:
            budget: The budget of the step.
            saved_ms: What an accepted token saves, in milliseconds.

        Returns:
            A budget with bounded depth and nodes, and with a floor.
        """
        # A path that is reached with chance f saves about f · GOES_ON · saved_ms by one more level,
        # which costs level_ms.
        floor = max(budget.floor, min(1.0, self.level_ms / (GOES_ON * saved_ms)))
        return replace(
            budget,
            depth=min(budget.depth, self.deepest),
            nodes=min(budget.nodes, self.most),
            floor=floor,
        )


@dataclass
class TreeYield:
    """What asking has brought in this text, by classes of steps.

    Attributes:
        counts: Tokens beyond those that would have come without it.
    """

    counts: ChanceCalibration = field(
        default_factory=lambda: ChanceCalibration(len(BRINGS), TRUST, FORGET)
    )

    def expected_tokens(self, step: int, prior: float) -> float:
        """Tokens that asking is expected to bring.

        Args:
            step: Class of the step.
            prior: What is expected before anything was seen.

        Returns:
            The expected tokens.
        """
        return self.counts.cell_chance(step, prior)

    def count_tokens(self, step: int, tokens: float) -> None:
        """Count one step in which it was asked.

        Args:
            step: Class of the step.
            tokens: Tokens that asking brought.
        """
        self.counts.add_cases(step, tokens)

    def pass_over(self, step: int) -> None:
        """Note that it was not asked in a step of this class: what was counted there fades."""
        # Fading counts bring the estimate back to its prior, so that the class may be tried again.
        self.counts.right[step] *= FADE
        self.counts.tried[step] *= FADE


def class_of(draft: Draft) -> int:
    """The class of a step, by the best chance of a free candidate's first token."""
    if draft.chance:
        firsts = draft.children[0]
        best = max((draft.chance[i] for i in firsts), default=0.0)
    else:
        firsts = ()
        best = 0.0
    return min(int(best * len(BRINGS)), len(BRINGS) - 1)
