"""Chances of drafted tokens that have siblings, or that one or two sources propose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log

from polydec.core.types import Draft
from polydec.methods.economics.tree_builder import TreeBuilder

LEAST = 0.005
MOST = 0.999
"""Chances beyond these are taken for these."""
UNNAMED = 0.05
"""The chance of a token that one of two sources names and the other does not."""


def single_source_chance(chance: float, rival: float) -> float:
    """Correct a source's chance by that of its best sibling.

    The coefficients are fitted to chances of copies, counts and zoo:smollm2-states, on answers of
    SmolLM2-135M-Instruct to prompts that are there for tuning.

    Args:
        chance: What the source says, 0 to 1.
        rival: The highest chance of a sibling, 0 to 1; 0 where there is none.

    Returns:
        How likely the token is accepted where its parent is, 0 to 1.
    """
    # A logistic regression on the log-odds of the chance, less a term for the rival.
    return _chance(0.78 * _odds(chance, LEAST) - 1.7 * rival)


def two_source_chance(first: float, second: float, rival: float) -> float:
    """Combine what two sources say of a token.

    A token that both name is likelier than either says.

    Args:
        first: Chance by the first source, 0 to 1. 0: it does not name the token.
        second: Chance by the second source, 0 to 1.
        rival: The highest chance that either gives to another token.

    Returns:
        How likely the token is accepted where its parent is, 0 to 1.
    """
    both = _odds(first, UNNAMED) + _odds(second, UNNAMED)
    return _chance(0.9 + 0.7 * both - 0.34 * _odds(rival, UNNAMED))


def weigh_draft_chances(draft: Draft) -> Draft:
    """Correct the chances of a certain tree by those of siblings.

    Other drafts stay as they are.
    """
    if draft.chance is None or not is_certain_draft(draft):
        return draft
    chance = list(draft.chance)
    for below in draft.children:
        for i, rival in _rivals({i: draft.chance[i] for i in below}):
            chance[i] = single_source_chance(draft.chance[i], rival)
    return Draft.certain_tree(draft.token, draft.parent, chance)


def merge_certain_drafts(first: Draft, second: Draft) -> Draft:
    """Merge two certain trees below the same root.

    Args:
        first: A draft of which nothing was drawn; its nodes keep their numbers.
        second: Another one with the same root token.

    Returns:
        One tree; each token's chance follows from what both say of it.
    """
    # The trees are merged by token: a node of both has a chance in `of_first` and in `of_second`.
    tree = TreeBuilder.of_draft(first)
    of_first = {i: p for i, p in enumerate(first.chance or (1.0,) * len(first)) if i}
    of_second = dict[int, float]()
    place = [0]
    for i in range(1, len(second)):
        place.append(tree.find_or_add(place[second.parent[i]], second.token[i]))
        of_second[place[i]] = 1.0 if second.chance is None else second.chance[i]
    # Where both sources say something of the children, each child is weighed by both: one that a
    # source leaves out counts against it. Elsewhere a single source speaks.
    for below in tree.children:
        a, b = ({i: of[i] for i in below.values() if i in of} for of in (of_first, of_second))
        best = {i: max(a.get(i, 0.0), b.get(i, 0.0)) for i in below.values()}
        for i, rival in _rivals(best):
            if a and b:
                tree.chance[i] = two_source_chance(a.get(i, 0.0), b.get(i, 0.0), rival)
            else:
                tree.chance[i] = single_source_chance(best[i], rival)
    tree.said = True
    return tree.built_draft()


def is_certain_draft(draft: Draft) -> bool:
    """Return whether nothing of a draft was drawn, and nothing is a probe."""
    return draft.probe is None and all(law is None for law in draft.law)


def _rivals(chance: Mapping[int, float]) -> Iterable[tuple[int, float]]:
    """Return each sibling's best rival: the highest chance of another one, or 0."""
    if len(chance) < 2:
        return [(i, 0.0) for i in chance]
    first, second = sorted(chance.values(), reverse=True)[:2]
    return [(i, second if p == first else first) for i, p in chance.items()]


def _odds(chance: float, least: float) -> float:
    p = min(max(chance, least), MOST)
    return log(p / (1.0 - p))


def _chance(odds: float) -> float:
    return 1.0 / (1.0 + exp(-odds))
