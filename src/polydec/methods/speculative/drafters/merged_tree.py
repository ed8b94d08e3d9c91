"""The drafts of several drafters as one tree, of which the likeliest nodes are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.economics.calibration import ChanceCalibration
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.drafters._several import (
    combined_price_ms,
    combined_want,
    teach_all_guesses,
)
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

BUCKETS = 16
"""Chances are told apart to 1 / BUCKETS."""
FORGET = 256
"""Counts of a bucket are halved when they reach this, so that old text weighs less."""
UNSAID = 0.5
"""What is taken for the chance of a node whose source says nothing of it."""


@dataclass(frozen=True)
class MergedTreeDrafter:
    """Merge what the drafters propose: equal beginnings become one path, and of all nodes those are kept, as many as the
    budget allows, whose path is likeliest to be accepted (with their ancestors; the product of chances never rises).

    A source's own chances are calibrated while the text is written: a node that a source gave the chance c has the
    chance (accepted + trust · c) / (tried + trust), counted over the nodes of that source with about the same c whose
    parent was accepted, whether they were kept or not. A node that several sources propose has the best of their chances, c,
    and beside siblings of which the best has r the odds c / (1 - c) become (1 - r) c / (1 - c): a source that says something
    else is evidence against it. (On about 20 greedy answers of SmolLM2-135M-Instruct that takes the log loss from 0.387 to
    0.350.) These are the draft's `chance`.

    Drawn nodes are never cut or mixed: the first source that drew any (or has probes) comes in whole, before everything
    else, and other sources' drawn nodes and probes are left out with what is below them. The first drafter draws with the
    randomness given, the k-th with its child k.

    drafters: at least one; trust: above 0, how many trials a source's own chance is worth; floor: 0 to 1, certain nodes
    whose path is less likely are left out.

    Exact: law, under any exact verifier: what is certain may be chosen freely, what was drawn is left as it was drawn.
    Reduces to: its only drafter, with floor 0.
    Source: composition; the choice of the likeliest paths is optimal for a given size (Sequoia, Chen et al., 2024;
    EAGLE-2, Li et al., 2024).
    """

    drafters: tuple[Drafter, ...]
    trust: float = 32.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not self.drafters:
            raise RequestError("drafters is empty: at least one is needed")
        if not self.trust > 0.0:
            raise RequestError(f"trust is {self.trust}: it must be above 0")
        if not 0.0 <= self.floor <= 1.0:
            raise RequestError(f"floor is {self.floor}: it must lie in 0 to 1")

    def open(self, prompt: Sequence[int], session: Session) -> MergedTreeGuess:
        cells = len(self.drafters) * (BUCKETS + 1)
        return MergedTreeGuess(
            self,
            tuple(d.open(prompt, session) for d in self.drafters),
            ChanceCalibration(cells, self.trust, FORGET),
            [],
        )


class TreeMerger:
    """A tree under way, and of each of its nodes the cells (source and bucket) that are told whether it was right."""

    __slots__ = ("cells", "tree")

    def __init__(self, root: int) -> None:
        self.tree = TreeBuilder(root)
        self.cells: list[list[int]] = [[]]

    def take(self, draft: Draft, first: int, rates: ChanceCalibration, whole: bool) -> None:
        """Merge a draft into this tree; `first` is the source's first cell. Unless `whole`, only what is certain."""
        # Of each node of the draft its node here, -1: left out.
        tree, place = self.tree, [0]
        for i in range(1, len(draft.token)):
            at = place[draft.parent[i]]
            token = draft.token[i]
            probe = draft.probe is not None and draft.probe[i]
            if at < 0 or (not whole and (probe or draft.law[i] is not None)):
                place.append(-1)
                continue
            if draft.chance is None:
                raw = UNSAID
            else:
                raw = draft.chance[i]
            cell = first + int(raw * BUCKETS)
            chance = rates.chance(cell, raw)
            if whole:
                node = tree.add(at, token, chance, draft.draw[i], draft.law[i], probe)
            else:
                node = tree.put(at, token, chance)
            if node == len(self.cells):
                self.cells.append([])
            self.cells[node].append(cell)
            place.append(node)

    def weigh(self) -> None:
        """Each chance becomes less beside a sibling that has one."""
        # Nothing is so sure that it outweighs all else.
        chances = [min(c, 0.999) for c in self.tree.chance]
        for kids in self.tree.children:
            if len(kids) > 1:
                first, second = sorted([chances[i] for i in kids.values()], reverse=True)[:2]
                for i in kids.values():
                    c = chances[i]
                    r = second if chances[i] == first else first
                    self.tree.chance[i] = c * (1.0 - r) / (c * (1.0 - r) + 1.0 - c)

    def best(self, whole: int, most: int, floor: float) -> list[int]:
        """The nodes to keep: the first `whole` ones, and of the others those with the likeliest paths."""
        value = [1.0]
        for p, c in zip(self.tree.parent[1:], self.tree.chance[1:]):
            value.append(value[p] * c)
        likely = [i for i in range(whole, len(value)) if value[i] >= floor]
        # Parents come before their children on a tie: the sort is stable.
        if whole + len(likely) > most + 1:
            likely = sorted(
                sorted(likely, key=value.__getitem__, reverse=True)[: max(most + 1 - whole, 0)]
            )
        return [*range(whole), *likely]


@dataclass(frozen=True)
class MergedTreeGuess:
    """rates: of each source and bucket; last: the proposal as it was before the choice."""

    config: MergedTreeDrafter
    guesses: tuple[DraftGuess, ...]
    rates: ChanceCalibration
    last: list[TreeMerger]

    @property
    def price(self) -> float:
        return combined_price_ms(self.guesses)

    @property
    def want(self) -> ScoreRequest:
        return combined_want(self.guesses)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        drafts = [
            await g.propose(root, position, budget, rng.at("source", k) if k else rng)
            for k, g in enumerate(self.guesses)
        ]
        first = next(
            (
                k
                for k, d in enumerate(drafts)
                if d.probe is not None or any(x is not None for x in d.law)
            ),
            None,
        )
        merged = TreeMerger(root)
        if first is not None:
            merged.take(drafts[first], first * (BUCKETS + 1), self.rates, whole=True)
        whole = len(merged.tree)
        for k, draft in enumerate(drafts):
            if k != first:
                merged.take(draft, k * (BUCKETS + 1), self.rates, whole=False)
        if len(drafts) > 1:
            merged.weigh()
        self.last[:] = [merged]
        out = merged.tree.draft()
        keep = merged.best(whole, budget.nodes, self.config.floor)
        if len(keep) == len(out):
            return out
        return out.only(keep)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        # None at the prompt.
        for merged in self.last:
            node = 0
            for x in verdict.tokens(draft):
                children = merged.tree.children[node]
                for token, child in children.items():
                    for cell in merged.cells[child]:
                        self.rates.observe(cell, token == x)
                if x not in children:
                    break
                node = children[x]
        self.last.clear()
        teach_all_guesses(self.guesses, draft, scores, verdict)

    def fork(self, session: Session, choice: int | None = None) -> MergedTreeGuess:
        guesses = tuple(g.fork(session, choice) for g in self.guesses)
        return MergedTreeGuess(self.config, guesses, self.rates.copy(), list(self.last))

    def close(self) -> None:
        for guess in self.guesses:
            guess.close()
