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
    """The tree of certain candidates whose paths have the largest products of chances; none falls below `floor`.

    state: of the root, whatever `after` understands; after(state, product): (chance, token, state behind it) of the children
    of a node whose path has that product; those that would fall below the floor may be left out. Of equals the one that was
    found first.
    """
    token = [root]
    parent = [-1]
    depth = [0]
    chance = [1.0]
    most = budget.depth
    nodes = budget.nodes
    count = 0
    # -product, found when, node above, chance, token, state.
    heap = list[tuple[float, int, int, float, int, S]]()
    node = 0
    product = 1.0
    while True:
        if depth[node] < most:
            for p, x, behind in after(state, product):
                if product * p >= floor:
                    count += 1
                    heappush(heap, (-product * p, count, node, p, x, behind))
        if not heap or node >= nodes:
            return Draft.certain(token, parent, chance if node else None)
        product, _, above, p, x, state = heappop(heap)
        product = -product
        node += 1
        token.append(x)
        parent.append(above)
        depth.append(depth[above] + 1)
        chance.append(min(p, 1.0))
