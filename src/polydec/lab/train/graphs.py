"""Graphs of two trees of the same size, of which one can ask what is reached.

A question is `ab|cd|…?xy>r`: an edge leads from its first letter to its second; which of x and y is
reached from r? Both stand equally deep, each in its own tree, so only the way from r tells them
apart. The answer is the letter that is reached.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.lab.train.data import held_out

NAMES = "abcdefghijklmnopqrstuvwxyz"
"""What nodes are called, so there are at most so many."""

ANSWER = "="
"""Stands before an answer."""


@dataclass(frozen=True)
class ReachabilityGraph:
    """A question about a graph of two trees.

    Attributes:
        question: The edges and what is asked, as the module describes.
        frontier: Nodes at depth 1, 2, … from the root that is asked about.
        path: Nodes from the root (left out) to the answer.
        answer: The node that is reached, the last of `path`.
    """

    question: str
    frontier: tuple[str, ...]
    path: str
    answer: str

    @property
    def names_below(self) -> dict[str, str]:
        """The nodes where edges lead, by the node where they begin."""
        out = dict[str, str]()
        for edge in self.question.partition("?")[0].split("|"):
            # An edge is two letters: where it begins, and where it leads.
            out[edge[0]] = out.get(edge[0], "") + edge[1]
        return out

    @property
    def depth(self) -> int:
        """Steps from the root to the answer."""
        return len(self.path)


def require_graph_size(nodes: int, hops: int) -> None:
    """Refuse sizes that two trees cannot have.

    Args:
        nodes: Nodes of both trees together, an even number.
        hops: Depth of both trees.

    Raises:
        RequestError: The number is odd, too small for two paths, or larger than the alphabet.
    """
    if nodes % 2 or not 2 * (hops + 1) <= nodes <= len(NAMES):
        raise RequestError(
            f"nodes is {nodes}: it must be even and lie in {2 * (hops + 1)} (two paths of {hops} steps) to {len(NAMES)}"
        )


def draw_reachability_graph(
    seed: str, nodes: int, hops: int, depth: int | None = None, unseen: bool = False
) -> ReachabilityGraph:
    """Draw the graph of a name.

    Args:
        seed: Name of the graph.
        nodes: Nodes of both trees together, an even number.
        hops: Depth of both trees.
        depth: Depth of the answer, 1 to `hops`; None: any of these.
        unseen: Whether the question is held out from training (by SHA-1). Default False.

    Returns:
        The graph.
    """
    dice = random.Random(f"graph {seed} {nodes} {hops} {depth}")
    while held_out((made := _drawn(dice, nodes // 2, hops, depth)).question) != unseen:
        pass
    return made


def _drawn(dice: random.Random, size: int, hops: int, depth: int | None) -> ReachabilityGraph:
    names = dice.sample(NAMES, 2 * size)
    trees = [_tree(dice, names[:size], hops), _tree(dice, names[size:], hops)]
    # A root has no parent, and so no edge to it.
    edges = [parent + child for tree in trees for child, (parent, _) in tree.items() if parent]
    dice.shuffle(edges)
    if depth is None:
        deep = dice.randint(1, hops)
    else:
        deep = depth
    # Both candidates stand equally deep, so depth does not tell them apart.
    right, wrong = (dice.choice([x for x, (_, d) in t.items() if d == deep]) for t in trees)
    # The order of the two candidates says nothing.
    if dice.random() < 0.5:
        asked = (right, wrong)
    else:
        asked = (wrong, right)
    reached = trees[0]
    path = right
    # From the answer up to the root's child.
    while (parent := reached[path[0]][0]) != names[0]:
        path = parent + path
    frontier = tuple(
        "".join(x for x, (_, d) in reached.items() if d == at) for at in range(1, hops + 1)
    )
    return ReachabilityGraph(
        f"{'|'.join(edges)}?{''.join(asked)}>{names[0]}", frontier, path, right
    )


def _tree(dice: random.Random, names: Sequence[str], hops: int) -> dict[str, tuple[str, int]]:
    """Draw a tree: the parent ("" of the root) and the depth of each node.

    The first nodes form a path as deep as the tree; the others hang anywhere that is not deeper.
    """
    tree = {names[0]: ("", 0)}
    for at, name in enumerate(names[1:], 1):
        # The first nodes form the deepest path.
        if at <= hops:
            above = names[at - 1]
        else:
            above = dice.choice([x for x in tree if tree[x][1] < hops])
        tree[name] = (above, tree[above][1] + 1)
    return tree
