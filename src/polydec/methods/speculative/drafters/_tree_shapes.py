"""Shapes of trees, with index paths as positions.

An index path is the rank among its siblings of each node on the way down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polydec.base.errors import RequestError

Path = tuple[int, ...]
Template = tuple[tuple[int, int], ...]
"""Of each node below the root (its parent's index, its rank), breadth first."""


def tree_template(paths: Sequence[Path]) -> Template:
    """The template of index paths.

    Every beginning of a path must be among the paths.
    """
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
            node or more than 256.
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
    if not 1 <= len(out) <= 256:
        raise RequestError(f"shape has {len(out)} nodes: it must have 1 to 256")
    return tuple(out)


def template_child_counts(paths: Sequence[Path]) -> tuple[int, ...]:
    """How many children each node has, breadth first, without the zeros at the end.

    It is the shape that `of_counts` reads; every beginning of a path must be among the paths.
    """
    nodes = tree_template(paths)
    out = [sum(above == i for above, _ in nodes) for i in range(len(nodes) + 1)]
    while out and not out[-1]:
        out.pop()
    return tuple(out)


def most_accepted_paths(accepted: Mapping[Path, int], nodes: int) -> tuple[Path, ...]:
    """Choose the index paths that were accepted most often.

    They come with their own beginnings and with the lower ranks of the same parents. Counts imply
    these mostly, as a path is accepted with all its beginnings; what is missing is put in.

    Args:
        accepted: How often each index path was accepted.
        nodes: Most paths.

    Returns:
        The paths, breadth first.
    """
    chosen: set[Path] = set()
    for path in sorted(accepted, key=lambda path: (-accepted[path], len(path), path)):
        # All beginnings of the path, and for each of them the siblings of lower rank: a template
        # with these can be written as child counts.
        need = {path[:i] for i in range(1, len(path) + 1)}
        need |= {(*p[:-1], r) for p in need for r in range(p[-1])}
        # A path that does not fit with all it needs is passed over; a later one may fit.
        if len(chosen | need) <= nodes:
            chosen |= need
    return tuple(sorted(chosen, key=lambda path: (len(path), path)))
