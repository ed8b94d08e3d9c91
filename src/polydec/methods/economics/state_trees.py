"""Trees for drafters whose guesses ride in the pass: how many tokens and how many probes, by what was guessed before."""

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
    """What is fed in a state. The state is how many probes stood behind the token that was accepted last: so many levels have
    guesses. paths: of the tree's nodes by rank, level by level; probes: behind the root and behind each of these; tokens:
    expected of a round, the one behind the path counted; moves: the chance of each next state, from 0 on."""

    paths: tuple[Path, ...]
    probes: tuple[int, ...]
    tokens: float
    moves: tuple[float, ...]

    @property
    def rows(self) -> int:
        """Tokens and probes that are fed beside the root."""
        return len(self.paths) + sum(self.probes)


def likeliest_path_chances(rates: Rates, nodes: int, state: int) -> dict[Path, float]:
    """The `nodes` paths of at most `state` levels whose products of rates are largest (fewer where there are no more), and
    these products; the root's is 1. A rank counts as no better than the ones before it."""
    chances: dict[Path, float] = {(): 1.0}
    tips: dict[Path, float] = {(0,): rates[0][0]} if state and rates[0] else {}
    while tips and len(chances) <= nodes:
        path = max(tips, key=tips.__getitem__)
        chances[path] = value = tips.pop(path)
        level = rates[len(path) - 1]
        above = chances[path[:-1]]
        if path[-1] + 1 < len(level):  # the next of its siblings
            tips[(*path[:-1], path[-1] + 1)] = min(value, above * level[path[-1] + 1])
        if len(path) < state and rates[len(path)]:  # its first child
            tips[(*path, 0)] = value * rates[len(path)][0]
    return chances


def build_state_trees(rates: Rates, limit: int, nodes: Sequence[int]) -> tuple[StateTree, ...]:
    """One for each state, 0 to the number of probes, of at most `limit` rows beside the root; nodes: how many tokens each
    state's tree may have. Every node gets a probe for each level, and then the probes go, one by one, whose loss is least: the
    chance that their node is accepted last times what the next round's tree would lose with a level less."""
    most = len(rates)
    paths = [
        likeliest_path_chances(rates, min(n, limit), state) for state, n in enumerate((0, *nodes))
    ]
    tokens = [sum(chances.values()) for chances in paths]
    return tuple(_tree(chances, tokens, limit, most) for chances in paths)


def _tree(chances: dict[Path, float], tokens: Sequence[float], limit: int, most: int) -> StateTree:
    order = sorted(chances, key=lambda path: (len(path), path))
    stop = dict(chances)
    for path in order[1:]:
        stop[path[:-1]] -= chances[path]
    left = dict.fromkeys(order, most)
    room = limit - len(order) + 1
    loss = {path: stop[path] * (tokens[most] - tokens[most - 1]) for path in order}
    for _ in range(most * len(order) - room):
        path = min(loss, key=loss.__getitem__)
        left[path] -= 1
        n = left[path]
        if n:
            loss[path] = stop[path] * (tokens[n] - tokens[n - 1])
        else:
            del loss[path]
    moves = [0.0] * (most + 1)
    for path in order:
        moves[left[path]] += stop[path]
    probes = tuple(left[path] for path in order)
    return StateTree(tuple(order[1:]), probes, sum(chances.values()), tuple(moves))


def per_round(made: Sequence[StateTree]) -> float:
    """Tokens a round in the long run: the states are a Markov chain, which begins in state 0."""
    move_SS = torch.tensor([tree.moves for tree in made], dtype=torch.float64)
    lazy_SS = (move_SS + torch.eye(len(made), dtype=torch.float64)) / 2  # it has no period
    for _ in range(20):
        lazy_SS = lazy_SS @ lazy_SS
        lazy_SS = lazy_SS / lazy_SS.sum(-1, keepdim=True)
    tokens_S = torch.tensor([tree.tokens for tree in made], dtype=torch.float64)
    return float(lazy_SS[0] @ tokens_S)


@lru_cache(maxsize=64)
def best_state_trees(rates: Rates, limit: int) -> tuple[StateTree, ...]:
    """The trees of at most `limit` rows with the most tokens a round: the number of tokens of one state after another is
    changed, among TRIED from 1 up to `limit`, until no change helps."""
    most = len(rates)
    tried = sorted({max(1, round(1 + (limit - 1) * i / (TRIED - 1))) for i in range(TRIED)})
    nodes = [max(1, limit // 2)] * most
    made = build_state_trees(rates, limit, nodes)
    top = per_round(made)
    better = True
    while better:
        better = False
        for state in range(most):
            for n in tried:
                other = build_state_trees(rates, limit, [*nodes[:state], n, *nodes[state + 1 :]])
                if (value := per_round(other)) > top + 1e-9:
                    nodes[state], made, top, better = n, other, value, True
    return made


def fastest_state_trees(rates: Rates, most: int, costs: PassCosts) -> tuple[StateTree, ...]:
    """The trees of at most `most` rows that give the most tokens a millisecond by these costs."""
    made = [
        best_state_trees(rates, n) for n in dict.fromkeys((*(s for s in SIZES if s < most), most))
    ]
    return max(
        made,
        key=lambda trees_made: (
            per_round(trees_made) / costs.share(1 + max(tree.rows for tree in trees_made))
        ),
    )
