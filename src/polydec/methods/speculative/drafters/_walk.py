"""Growing a draft where chances are known without a model: the likeliest paths first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TypeVar

from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import DraftBudget

S = TypeVar("S")


def likeliest_first(
    root: int,
    state: S,
    after: Callable[[S, float], Iterable[tuple[float, int, S]]],
    floor: float,
    budget: DraftBudget,
) -> Draft:
    """Grow the tree of certain candidates whose paths have the largest products of chances.

    Of equal products the one that was found first comes first.

    Args:
        root: Last token of the text. It is node 0 of the draft.
        state: State of the root, of any kind that `followers_of` understands.
        after: Called with a node's state and the product of its path, gives (chance, token, state)
            of each child. Children that would fall below the floor may be left out.
        floor: Least product of a path, 0 to 1.
        budget: Most levels and nodes.

    Returns:
        The tree, whose chances are those of the candidates.
    """
    token = [root]
    parent = [-1]
    depth = [0]
    chance = [1.0]
    most = budget.depth
    nodes = budget.nodes
    count = 0
    # A heap of candidates: negative product, when it was found, the parent's node, chance, token,
    # state.
    heap = list[tuple[float, int, int, float, int, S]]()
    node = 0
    product = 1.0
    while True:
        # Children of the node that was added last: products never rise along a path, so no better
        # candidate can hide elsewhere.
        if depth[node] < most:
            for p, x, behind in after(state, product):
                if product * p >= floor:
                    count += 1
                    heappush(heap, (-product * p, count, node, p, x, behind))
        # A draft of the root alone states no chances.
        if not heap or node >= nodes:
            return Draft.certain_tree(token, parent, chance if node else None)
        product, _, above, p, x, state = heappop(heap)
        product = -product
        node += 1
        token.append(x)
        parent.append(above)
        depth.append(depth[above] + 1)
        chance.append(min(p, 1.0))
