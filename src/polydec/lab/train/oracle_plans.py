"""Which clauses of a source its text says: the plans that are learned from.

Source: Adams et al., Generating EDU extracts for plan-guided summary re-ranking, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from polydec.lab.train.rouge import lower_case_words, mean_rouge
from polydec.lab.train.tokens import mark_id
from polydec.models.nets.plan_pointer import MOST
from polydec.models.text.clauses import CLAUSE_MARKS, ClauseSpan, clause_spans


@dataclass(frozen=True)
class PlannedPair:
    """A pair, and which clauses of its source its target says.

    Attributes:
        source: Token ids of the source.
        target: Token ids of the target.
        spans: Clauses of the source.
        plan: Numbers of the clauses that the target says, each once.
        salience: Of each clause how much of it some clause of the target says, 0 to 1.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    spans: tuple[ClauseSpan, ...]
    plan: tuple[int, ...]
    salience: tuple[float, ...]


def plan_of_pair(
    pair: tuple[tuple[int, ...], tuple[int, ...]],
    pieces: Sequence[bytes | None],
    decode: Callable[[Sequence[int]], str],
) -> PlannedPair:
    """Find the oracle plan of a pair.

    Args:
        pair: Token ids of source and target.
        pieces: Of each id its bytes; None for marks.
        decode: Gives the text of ids.

    Returns:
        The pair with its plan.
    """
    # Source and target are cut by the same rule, so that their clauses compare.
    sides = list[tuple[tuple[ClauseSpan, ...], list[list[str]]]]()
    for ids in pair:
        spans = clause_spans(ids, pieces, MOST)
        sides.append((spans, [lower_case_words(decode(ids[a:b])) for a, b in spans]))
    (spans, clauses), (_, meant) = sides
    match = [[mean_rouge(clause, one) for clause in clauses] for one in meant]
    # A target without a clause asks for nothing.
    salience = tuple(max((row[i] for row in match), default=0.0) for i in range(len(clauses)))
    plan = better_plan(clauses, meant, match)
    return PlannedPair(*pair, spans, plan, salience)


def better_plan(
    clauses: Sequence[Sequence[str]],
    meant: Sequence[Sequence[str]],
    match: Sequence[Sequence[float]],
) -> tuple[int, ...]:
    """The better of two plans by ROUGE against the whole reference.

    One takes for each clause of the reference the clause of the source that is most like it, the
    other adds clause after clause as long as ROUGE grows.

    Args:
        clauses: Words of each clause of the source.
        meant: Words of each clause of the reference.
        match: Of each clause of the reference how like each clause of the source is to it.

    Returns:
        Numbers of clauses, each once; none where nothing is alike.
    """
    # N-grams over the ends of clauses count as well, as where whole texts are compared.
    whole = [word for one in meant for word in one]

    def plan_score(plan: Sequence[int]) -> float:
        """How like the clauses of a plan together are to the reference."""
        return mean_rouge([word for i in plan for word in clauses[i]], whole)

    # A dict and not a set: the plan has the order of the reference's clauses, each once.
    nearest = dict.fromkeys(
        max(range(len(row)), key=row.__getitem__) for row in match if row and max(row) > 0
    )
    grown = list[int]()
    while True:
        rest = [i for i in range(len(clauses)) if i not in grown]
        best = max(rest, key=lambda i: plan_score([*grown, i]), default=None)
        # Without gain it ends: every further clause would cost precision.
        if best is None or plan_score([*grown, best]) <= plan_score(grown):
            break
        grown.append(best)
    return tuple(max((list(nearest), grown), key=plan_score))


def clause_mark_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids of the marks of a clause. Raises RequestError where a tokenizer has none."""
    return mark_id(tokenizer, CLAUSE_MARKS[0]), mark_id(tokenizer, CLAUSE_MARKS[1])


def corrupt_plan(
    plan: Sequence[int], clauses: int, rng: np.random.Generator
) -> tuple[int, ...] | None:
    """A plan that the target does not follow.

    All clauses are replaced by as many others, as far as there are any, or one by one other; either
    is drawn as often.

    Args:
        plan: Numbers of the clauses that it says.
        clauses: Clauses of the source.
        rng: Draws.

    Returns:
        Numbers of clauses; None where there is no other plan.
    """
    # What comes in is never right by chance.
    others = [i for i in range(clauses) if i not in plan]
    if not plan or not others:
        return None
    if rng.random() < 0.5:
        drawn = rng.permutation(others)[: len(plan)]
        return tuple(int(i) for i in drawn)
    out = list(plan)
    # The nearest wrong plan: the model must heed every single mark.
    out[int(rng.integers(len(plan)))] = int(rng.choice(others))
    return tuple(out)


def plan_overlap(plan: Sequence[int], meant: Sequence[int]) -> float:
    """F1 of the clauses of a plan.

    Args:
        plan: Numbers of clauses.
        meant: Those of the plan that it is compared with.

    Returns:
        0 to 1; 1 where both are empty.
    """
    both = len(set(plan)) + len(set(meant))
    return 2 * len(set(plan) & set(meant)) / both if both else 1.0
