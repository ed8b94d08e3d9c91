"""What a certain draw counts for: 1, or where the budget is graded the draft model's own probability of the token."""
from __future__ import annotations

from math import exp

from polydec.core.protocols import Scores
from polydec.core.types import Budget, Reads, Want


def wanted(budget: Budget) -> Want:
    """What a tree must see of the draft's scores."""
    return Want(base=Reads.ROW if budget.graded else Reads.NOTHING)


def sure(scores: Scores, node: int, token: int, budget: Budget) -> float:
    """q of a certain draw below `node`."""
    return exp(scores.base.logp(node, (token,))[0]) if budget.graded else 1.0
