"""Graphs of which one can ask what is reached: two trees of the same size, whose edges stand in any
order.

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
    """question: as it is asked; frontier: of each depth from 1 on the nodes that are so many steps
    from the root; path: from the root (left out) to the answer; answer: the last of it; depth: how
    many steps that takes."""

    question: str
    frontier: tuple[str, ...]
    path: str
    answer: str

    @property
    def below(self) -> dict[str, str]:
        """Of each node from which edges lead the nodes where they lead."""
        out = dict[str, str]()
        for edge in self.question.partition("?")[0].split("|"):
            out[edge[0]] = out.get(edge[0], "") + edge[1]
        return out

    @property
    def depth(self) -> int:
        return len(self.path)


def require_graph_size(nodes: int, hops: int) -> None:
    """Raise RequestError where two trees of so many nodes in all cannot be so deep."""
    if nodes % 2 or not 2 * (hops + 1) <= nodes <= len(NAMES):
        raise RequestError(
            f"nodes is {nodes}: it must be even and lie in {2 * (hops + 1)} (two paths of {hops} steps) to {len(NAMES)}"
        )


def draw_reachability_graph(
    seed: str, nodes: int, hops: int, depth: int | None = None, unseen: bool = False
) -> ReachabilityGraph:
    """A graph of this name. nodes: in all, an even number; hops: how deep both trees are; depth: of
    the answer, None: any from 1 to hops; unseen: one whose question is held out from training
    (SHA-1), else one that is not."""
    dice = random.Random(f"graph {seed} {nodes} {hops} {depth}")
    while held_out((made := _drawn(dice, nodes // 2, hops, depth)).question) != unseen:
        pass
    return made


def _drawn(dice: random.Random, size: int, hops: int, depth: int | None) -> ReachabilityGraph:
    names = dice.sample(NAMES, 2 * size)
    trees = [_tree(dice, names[:size], hops), _tree(dice, names[size:], hops)]
    edges = [parent + child for tree in trees for child, (parent, _) in tree.items() if parent]
    dice.shuffle(edges)
    if depth is None:
        deep = dice.randint(1, hops)
    else:
        deep = depth
    right, wrong = (dice.choice([x for x, (_, d) in t.items() if d == deep]) for t in trees)
    if dice.random() < 0.5:
        asked = (right, wrong)
    else:
        asked = (wrong, right)
    reached = trees[0]
    path = right
    while (parent := reached[path[0]][0]) != names[0]:
        path = parent + path
    frontier = tuple(
        "".join(x for x, (_, d) in reached.items() if d == at) for at in range(1, hops + 1)
    )
    return ReachabilityGraph(
        f"{'|'.join(edges)}?{''.join(asked)}>{names[0]}", frontier, path, right
    )


def _tree(dice: random.Random, names: Sequence[str], hops: int) -> dict[str, tuple[str, int]]:
    """Of each node its parent ("" of the root) and its depth: a path as deep as the tree, and the
    rest anywhere below that."""
    tree = {names[0]: ("", 0)}
    for at, name in enumerate(names[1:], 1):
        if at <= hops:
            above = names[at - 1]
        else:
            above = dice.choice([x for x in tree if tree[x][1] < hops])
        tree[name] = (above, tree[above][1] + 1)
    return tree
