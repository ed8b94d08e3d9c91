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
"""Tokens that a drafter brings beside copies and counts which is right in `RIGHT` of its first tokens, by classes of steps: the
best chance of a first token that these know, in six equal parts. Measured with zoo:smollm2-states on greedy answers to prompts
that are there for tuning."""
RIGHT = 0.545
"""How often zoo:smollm2-states is right in the first token, as its file says."""
TRUST = 12.0
FORGET = 64.0
"""Steps that the above is worth; counts of a class are halved at so many."""
FADE = 0.995
"""What is kept of a class's counts in a step in which it was not worth asking, so that one bad stretch is not for good."""
DEEPEST = 8
MOST = 24
"""Levels and tokens of its tree, at most."""
GOES_ON = 0.5
"""How often a token below a likely path is right, as far as is known before it is named."""


@dataclass(frozen=True)
class PricedTree:
    """drafter: grows a tree of certain tokens and honours a budget's floor; first_ms, level_ms: what its first level and each
    further one take, at least 0, finite; right: in how many of its first tokens it is right, 0 to 1.

    Raises RequestError where one of these lies outside.
    """

    drafter: Drafter
    first_ms: float
    level_ms: float
    right: float = RIGHT

    def __post_init__(self) -> None:
        for name in ("first_ms", "level_ms"):
            if not 0.0 <= (ms := getattr(self, name)) < inf:
                raise RequestError(f"{name} is {ms}: it must be finite and at least 0")
        if not 0.0 <= self.right <= 1.0:
            raise RequestError(f"right is {self.right}: it must lie in 0 to 1")

    @staticmethod
    def by_costs(trained: tuple[Drafter, float], costs: PassCosts) -> PricedTree:
        """A drafter and how often it is right, by these costs (0 where nobody measured it)."""
        return PricedTree(trained[0], *(costs.tree_ms or (0.0, 0.0)), trained[1])

    def brings(self, step: int) -> float:
        """Tokens that asking is expected to bring in a step of this class."""
        return BRINGS[step] * self.right / RIGHT

    def least_ms(self, row_ms: float) -> float:
        """What asking costs at the least that is worth thinking of: two levels, and a row to feed what they name."""
        return self.first_ms + self.level_ms + row_ms

    def took_ms(self, draft: Draft, depth: int) -> float:
        """What a draft took that was asked for with so many levels: below its last one another was grown in vain."""
        return self.first_ms + self.level_ms * (min(depth, max(draft.depth) + 1) - 1)

    def budget(self, budget: DraftBudget, saved_ms: float) -> DraftBudget:
        """How much to ask for: no path goes on that does not pay for a level."""
        floor = max(budget.floor, min(1.0, self.level_ms / (GOES_ON * saved_ms)))
        return replace(
            budget, depth=min(budget.depth, DEEPEST), nodes=min(budget.nodes, MOST), floor=floor
        )


@dataclass
class TreeYield:
    """What asking has brought in this text, by classes of steps: tokens beyond those that would have come without."""

    counts: ChanceCalibration = field(
        default_factory=lambda: ChanceCalibration(len(BRINGS), TRUST, FORGET)
    )

    def expected(self, step: int, prior: float) -> float:
        return self.counts.chance(step, prior)

    def observe(self, step: int, tokens: float) -> None:
        self.counts.observe(step, tokens)

    def pass_over(self, step: int) -> None:
        """It was not asked in a step of this class."""
        self.counts.right[step] *= FADE
        self.counts.tried[step] *= FADE


def class_of(draft: Draft) -> int:
    """The class of a step, by what is known without asking."""
    if draft.chance:
        firsts = draft.children[0]
        best = max((draft.chance[i] for i in firsts), default=0.0)
    else:
        firsts = ()
        best = 0.0
    return min(int(best * len(BRINGS)), len(BRINGS) - 1)
