"""Shapes of trees, with index paths as positions.

An index path is the rank among its siblings of each node on the way down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polydec.base.errors import RequestError

IndexPath = tuple[int, ...]
Template = tuple[tuple[int, int], ...]
"""Of each node below the root (its parent's index, its rank), breadth first."""
MOST_NODES = 1024
USUAL_SHAPE = (3, 2, 1, 1, 1, 1, 0, 1)
"""Set by hand: as many nodes as pay on a CPU."""
PUBLISHED_NODES = 80
RECORDED_PLACES = (
    "0 00 000 1 0000 2 00000 3 01 10 000000 0000000 02 00000000 001 4 5 002 010 100 03 04 20 "
    "0001 6 7 003 000000000 0100 1000 101 11 0002 000001 05 8 30 00001 020 01000 102 000010 "
    "0010 004 005 0020 0003 0004 0005 10000 0000010 06 07 12 200 21 00010 00100 00002 00020 "
    "010000 50 13 14 0000001 08 006 007 9 011 110 1010 22 300 40 00200 040 100000 0000100 050"
)
"""Ranks of the most accepted places, top down, the most accepted first; counted by `polydec train
draft-tree` for `zoo:smollm2` (lab/reports/claims.md)."""


def tree_template(paths: Sequence[IndexPath]) -> Template:
    """The template of index paths.

    Every beginning of a path must be among the paths.
    """
    # Shorter paths first, so every parent has its index before its children ask for it.
    order = sorted(paths, key=lambda path: (len(path), path))
    index = {(): 0} | {path: i for i, path in enumerate(order, 1)}
    return tuple((index[path[:-1]], path[-1]) for path in order)


def of_counts(shape: Sequence[int]) -> Template:
    """The template of child counts.

    Args:
        shape: ``shape[i]`` is how many children node i has, 0 to 64, breadth first from the root
            (node 0). Nodes after its end have none.

    Returns:
        For each node below the root its parent's index and its rank, breadth first.

    Raises:
        RequestError: A count is not 0 to 64, there are counts of nodes that do not exist, or no
            node or more than 1024.
    """
    out: list[tuple[int, int]] = []
    for i, n in enumerate(shape):
        # Breadth first, the counts so far have made `len(out)` nodes below the root: a count of
        # node i needs node i.
        if not 0 <= n <= 64 or i > len(out):
            raise RequestError(
                f"shape is {','.join(map(str, shape))}: it must be the child counts (0 to 64) of the nodes, "
                "breadth first, such as 3,2,1"
            )
        out += [(i, rank) for rank in range(n)]
    if not 1 <= len(out) <= MOST_NODES:
        raise RequestError(f"shape has {len(out)} nodes: it must have 1 to {MOST_NODES}")
    return tuple(out)


def template_child_counts(paths: Sequence[IndexPath]) -> tuple[int, ...]:
    """How many children each node has, breadth first, without the zeros at the end.

    It is the shape that `of_counts` reads; every beginning of a path must be among the paths.
    """
    nodes = tree_template(paths)
    # Quadratic, but for 1024 nodes at most, and once when a method is built.
    out = [sum(above == i for above, _ in nodes) for i in range(len(nodes) + 1)]
    # Nodes behind the last count have no children anyway, and users write shapes by hand.
    while out and not out[-1]:
        out.pop()
    return tuple(out)


def low_rank_paths(nodes: int) -> tuple[IndexPath, ...]:
    """The index paths of the lowest ranks and fewest levels.

    A path costs 1 for each level and 1 for each rank on it, so a tree to begin with holds deep paths
    of first children and wide ones near the root.

    Args:
        nodes: How many paths.

    Returns:
        The cheapest paths, breadth first; every beginning of one and the lower ranks of its parents
        are among them.
    """
    chosen: list[IndexPath] = []
    shells: list[list[IndexPath]] = [[()]]
    while len(chosen) < nodes:
        # What costs c ends with rank r behind a path that costs c - 1 - r.
        cost = len(shells)
        shells.append([(*path, r) for r in range(cost) for path in shells[cost - 1 - r]])
        # A shell is cut where it is too much; what is cheapest and highest comes first.
        chosen += sorted(shells[-1], key=lambda path: (len(path), path))
    return tuple(sorted(chosen[:nodes], key=lambda path: (len(path), path)))


def most_accepted_paths(accepted: Mapping[IndexPath, int], nodes: int) -> tuple[IndexPath, ...]:
    """Choose the index paths that were accepted most often.

    They come with their own beginnings and with the lower ranks of the same parents. Counts imply
    these mostly, as a path is accepted with all its beginnings; what is missing is put in.

    Args:
        accepted: How often each index path was accepted.
        nodes: Most paths.

    Returns:
        The paths, breadth first.
    """
    chosen: set[IndexPath] = set()
    # Of equal counts the cheaper place wins, so a tree of no counts is that of low ranks.
    for path in sorted(accepted, key=lambda path: (-accepted[path], len(path) + sum(path), path)):
        # All beginnings of the path, and for each of them the siblings of lower rank: a template
        # with these can be written as child counts.
        need = {path[:i] for i in range(1, len(path) + 1)}
        need |= {(*p[:-1], r) for p in need for r in range(p[-1])}
        # A path that does not fit with all it needs is passed over; a later one may fit.
        if len(chosen | need) <= nodes:
            chosen |= need
    return tuple(sorted(chosen, key=lambda path: (len(path), path)))


def recorded_places() -> dict[IndexPath, int]:
    """RECORDED_PLACES as counts: their order is known and their counts are not, so the first has the
    largest."""
    places = [tuple(map(int, place)) for place in RECORDED_PLACES.split()]
    return {place: len(places) - i for i, place in enumerate(places)}


def chosen_tree_shape(
    shape: tuple[int, ...] | None, nodes: int | None, accepted: Mapping[IndexPath, int] | None
) -> tuple[int, ...]:
    """Which tree a user asked for.

    Args:
        shape: Child counts that the user gave. None: none.
        nodes: How many of the most accepted places. None: none was said.
        accepted: How often each place was accepted, counted by the user. None: not counted.

    Returns:
        The given shape; else that of the most accepted places, where they were counted or a number
        of them was given (of those that travel along then); else USUAL_SHAPE.

    Raises:
        RequestError: Both a shape and a number of places were given.
    """
    if shape is not None and nodes is not None:
        raise RequestError(
            f"shape is {','.join(map(str, shape))}, and counted is {nodes}: each says what the tree is, so leave one "
            "of them out"
        )
    if shape is not None:
        return shape
    if accepted is None and nodes is None:
        return USUAL_SHAPE
    # A user's own counts win over ours, which come from one model and its prompts.
    counts = recorded_places() if accepted is None else accepted
    return template_child_counts(most_accepted_paths(counts, nodes or PUBLISHED_NODES))
