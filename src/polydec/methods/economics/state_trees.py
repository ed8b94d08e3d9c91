"""Trees for drafters whose guesses are computed in the target's own pass (probes).

They decide how many tokens and how many probes are fed, by what was guessed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from polydec.methods.economics.costs import PassCosts

Path = tuple[int, ...]
Rates = tuple[tuple[float, ...], ...]
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows that are tried where costs choose how many."""
TRIED = 10
"""Numbers of tokens that are tried for a state, spread evenly."""


@dataclass(frozen=True)
class StateTree:
    """What is fed in a state.

    The state is how many probes followed the token that was accepted last: that many levels have
    guesses.

    Attributes:
        paths: Nodes of the tree as paths of ranks, level by level.
        probes: Number of probes after the root and after each of these nodes.
        tokens: Expected tokens of a round, with the one after the accepted path.
        moves: Chance of each next state, from 0 on.
    """

    paths: tuple[Path, ...]
    probes: tuple[int, ...]
    tokens: float
    moves: tuple[float, ...]

    @property
    def rows(self) -> int:
        """Tokens and probes that are fed, the root not counted."""
        return len(self.paths) + sum(self.probes)


def likeliest_path_chances(rates: Rates, nodes: int, state: int) -> dict[Path, float]:
    """Return the paths whose products of rates are largest, with these products.

    A rank counts as no better than the ones before it.

    Args:
        rates: rates[d][r] is how often the token of rank r is right, d levels below the root's
            children.
        nodes: Number of paths; fewer where there are no more.
        state: Most levels of a path.

    Returns:
        Chance of each path; the root's, (), is 1.
    """
    chances: dict[Path, float] = {(): 1.0}
    tips: dict[Path, float] = {(0,): rates[0][0]} if state and rates[0] else {}
    # Best first: a tip is a path whose parent is in the tree. Chances never grow along a path or
    # from rank to rank, so the best tip is the best of all paths that are left.
    while tips and len(chances) <= nodes:
        path = max(tips, key=tips.__getitem__)
        chances[path] = value = tips.pop(path)
        level = rates[len(path) - 1]
        above = chances[path[:-1]]
        # The next of its siblings; a rank counts as no better than the one before it.
        if path[-1] + 1 < len(level):
            tips[(*path[:-1], path[-1] + 1)] = min(value, above * level[path[-1] + 1])
        # Its first child, if the state has guesses for another level.
        if len(path) < state and rates[len(path)]:
            tips[(*path, 0)] = value * rates[len(path)][0]
    return chances


def build_state_trees(rates: Rates, limit: int, nodes: Sequence[int]) -> tuple[StateTree, ...]:
    """Build a tree for each state, 0 to the number of probes.

    Every node gets a probe for each level. Then the probes go, one by one, whose loss is least: the
    chance that their node is accepted last times what the next round's tree would lose with a level
    less.

    Args:
        rates: rates[d][r] is how often the token of rank r is right, d levels below the root's
            children.
        limit: Most rows of a tree, the root not counted.
        nodes: How many tokens the tree of each state from 1 on may have.
    """
    most = len(rates)
    paths = [
        likeliest_path_chances(rates, min(n, limit), state) for state, n in enumerate((0, *nodes))
    ]
    tokens = [sum(chances.values()) for chances in paths]
    return tuple(_tree(chances, tokens, limit, most) for chances in paths)


def _tree(chances: dict[Path, float], tokens: Sequence[float], limit: int, most: int) -> StateTree:
    order = sorted(chances, key=lambda path: (len(path), path))
    # stop: the chance that the accepted path ends at a node, which is its own less that of its
    # children.
    stop = dict(chances)
    for path in order[1:]:
        stop[path[:-1]] -= chances[path]
    left = dict.fromkeys(order, most)
    room = limit - len(order) + 1
    loss = {path: stop[path] * (tokens[most] - tokens[most - 1]) for path in order}
    # Greedy removal: probes of a node go from the deepest level up, so `left` of them stay.
    for _ in range(most * len(order) - room):
        path = min(loss, key=loss.__getitem__)
        left[path] -= 1
        n = left[path]
        if n:
            loss[path] = stop[path] * (tokens[n] - tokens[n - 1])
        else:
            del loss[path]
    # The next state is the number of probes at the node where the accepted path ends.
    moves = [0.0] * (most + 1)
    for path in order:
        moves[left[path]] += stop[path]
    probes = tuple(left[path] for path in order)
    return StateTree(tuple(order[1:]), probes, sum(chances.values()), tuple(moves))


def per_round(made: Sequence[StateTree]) -> float:
    """Return the tokens of a round in the long run.

    The states are a Markov chain, which begins in state 0.
    """
    move_SS = torch.tensor([tree.moves for tree in made], dtype=torch.float64)
    # Mixed with the identity the chain has no period, and the same long-run law.
    lazy_SS = (move_SS + torch.eye(len(made), dtype=torch.float64)) / 2
    # Squaring 20 times gives the chain's law after about a million rounds; rows are renormalised
    # against rounding.
    for _ in range(20):
        lazy_SS = lazy_SS @ lazy_SS
        lazy_SS = lazy_SS / lazy_SS.sum(-1, keepdim=True)
    tokens_S = torch.tensor([tree.tokens for tree in made], dtype=torch.float64)
    return float(lazy_SS[0] @ tokens_S)


@lru_cache(maxsize=64)
def best_state_trees(rates: Rates, limit: int) -> tuple[StateTree, ...]:
    """Return the trees with the most tokens a round.

    The number of tokens of one state after another is changed, among TRIED from 1 up to `limit`,
    until no change helps.

    Args:
        rates: rates[d][r] is how often the token of rank r is right, d levels below the root's
            children.
        limit: Most rows of a tree, the root not counted.
    """
    most = len(rates)
    tried = sorted({max(1, round(1 + (limit - 1) * i / (TRIED - 1))) for i in range(TRIED)})
    nodes = [max(1, limit // 2)] * most
    made = build_state_trees(rates, limit, nodes)
    top = per_round(made)
    better = True
    # Coordinate ascent over the states; the small margin stops changes that are rounding only.
    while better:
        better = False
        for state in range(most):
            for n in tried:
                other = build_state_trees(rates, limit, [*nodes[:state], n, *nodes[state + 1 :]])
                if (value := per_round(other)) > top + 1e-9:
                    nodes[state], made, top, better = n, other, value, True
    return made


def fastest_state_trees(rates: Rates, most: int, costs: PassCosts) -> tuple[StateTree, ...]:
    """Return the trees that give the most tokens a millisecond.

    Args:
        rates: rates[d][r] is how often the token of rank r is right, d levels below the root's
            children.
        most: Most rows of a tree, the root not counted.
        costs: What passes cost on this machine.
    """
    made = [
        best_state_trees(rates, n) for n in dict.fromkeys((*(s for s in SIZES if s < most), most))
    ]
    # Every round is charged the rows of the widest tree: an upper bound of what it costs.
    return max(
        made,
        key=lambda trees_made: (
            per_round(trees_made) / costs.request_share(1 + max(tree.rows for tree in trees_made))
        ),
    )
