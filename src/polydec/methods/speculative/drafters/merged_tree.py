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
from polydec.methods.speculative.drafters._drafter_group import (
    combined_price_ms,
    combined_want,
    teach_all_guesses,
)
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

BUCKETS = 16
"""Chances are distinguished to 1 / BUCKETS."""
FORGET = 256
"""Counts of a bucket are halved when they reach this, so that old text weighs less."""
UNSAID = 0.5
"""What is taken for the chance of a node whose source says nothing of it."""


@dataclass(frozen=True)
class MergedTreeDrafter:
    """Merge the drafts of several drafters into one tree, and keep its likeliest paths.

    Equal beginnings become one path, and of all nodes those stay, as many as the budget allows,
    whose path is likeliest to be accepted (with their ancestors; the product of chances never
    rises).

    A source's own chances are calibrated while the text is written: a node that a source gave the
    chance c has the chance (accepted + trust · c) / (tried + trust), counted over the nodes of that
    source with about the same c whose parent was accepted, whether they were fed or not. A node
    that several sources propose has the best of their chances, c, and among siblings of which the
    best has r the odds c / (1 - c) become (1 - r) c / (1 - c): a source that says something else is
    evidence against it. These are the draft's `chance`.

    Drawn nodes are never cut or mixed: the first source that drew any (or has probes) comes in
    complete, before everything else, and other sources' drawn nodes and probes are left out with
    what is below them. The first drafter draws with the randomness given, the k-th with its child
    k.

    Attributes:
        drafters: At least one.
        trust: How many trials a source's own chance is worth, above 0. Default 32.
        floor: Certain nodes whose path is less likely are left out, 0 to 1. Default 0.

    Exact: law, under any exact verifier: what is certain may be chosen freely, what was drawn is
    left as it was drawn.
    Reduces to: its only drafter, with floor 0.
    Source: composition; the choice of the likeliest paths is optimal for a given size (Sequoia,
    Chen et al., 2024; EAGLE-2, Li et al., 2024).
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

    def open_guess(self, prompt: Sequence[int], session: Session) -> MergedTreeGuess:
        """Begin a sequence of each drafter.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        # One cell for each source and bucket; a chance of 1 has a bucket of its own.
        cells = len(self.drafters) * (BUCKETS + 1)
        return MergedTreeGuess(
            self,
            tuple(d.open_guess(prompt, session) for d in self.drafters),
            ChanceCalibration(cells, self.trust, FORGET),
            [],
        )


class TreeMerger:
    """A tree under way, and for each of its nodes the cells that learn whether it was right.

    A cell is a source and a bucket of its chances.
    """

    __slots__ = ("cells", "tree")

    def __init__(self, root: int) -> None:
        self.tree = TreeBuilder(root)
        self.cells: list[list[int]] = [[]]

    def merge_draft(self, draft: Draft, first: int, rates: ChanceCalibration, whole: bool) -> None:
        """Merge a draft into this tree.

        Args:
            draft: The draft of one source.
            first: Index of the source's first cell.
            rates: Calibrates the source's chances.
            whole: Whether all of it comes in as it is; else only what is certain.
        """
        # For each node of the draft its node in this tree, -1 where it is left out.
        tree = self.tree
        place = [0]
        for i in range(1, len(draft.token)):
            at = place[draft.parent[i]]
            token = draft.token[i]
            probe = draft.is_probe(i)
            # What stands below a node that is left out is left out too.
            if at < 0 or (not whole and (probe or draft.law[i] is not None)):
                place.append(-1)
                continue
            if draft.chance is None:
                raw = UNSAID
            else:
                raw = draft.chance[i]
            cell = first + int(raw * BUCKETS)
            chance = rates.cell_chance(cell, raw)
            # Nodes of the complete draft are added one by one, equal siblings too: each was drawn.
            if whole:
                node = tree.add_node(at, token, chance, draft.draw[i], draft.law[i], probe)
            else:
                node = tree.find_or_add(at, token, chance)
            if node == len(self.cells):
                self.cells.append([])
            self.cells[node].append(cell)
            place.append(node)

    def weigh_siblings(self) -> None:
        """Lower each chance for a sibling that has one too."""
        # No chance is so sure that it outweighs all else: the odds of 1 would be infinite.
        chances = [min(c, 0.999) for c in self.tree.chance]
        for kids in self.tree.children:
            if len(kids) > 1:
                first, second = sorted([chances[i] for i in kids.values()], reverse=True)[:2]
                for i in kids.values():
                    c = chances[i]
                    # The best of the siblings is compared with the second best, all others with the
                    # best.
                    r = second if chances[i] == first else first
                    self.tree.chance[i] = c * (1.0 - r) / (c * (1.0 - r) + 1.0 - c)

    def best_nodes(self, whole: int, most: int, floor: float) -> list[int]:
        """Choose the nodes to feed.

        Args:
            whole: How many nodes, from the first, stay in any case.
            most: Most nodes, the root left out.
            floor: Least chance of a path for the other nodes, 0 to 1.

        Returns:
            Indices of the nodes, ascending: the first ``whole``, and those of the others with the
            likeliest paths.
        """
        # The chance of each node's path.
        value = [1.0]
        for p, c in zip(self.tree.parent[1:], self.tree.chance[1:]):
            value.append(value[p] * c)
        likely = [i for i in range(whole, len(value)) if value[i] >= floor]
        # The sort is stable, so parents come before their children on a tie, and a cut never takes
        # a parent away from its child.
        if whole + len(likely) > most + 1:
            likely = sorted(
                sorted(likely, key=value.__getitem__, reverse=True)[: max(most + 1 - whole, 0)]
            )
        return [*range(whole), *likely]


@dataclass(frozen=True)
class MergedTreeGuess:
    """The drafters at work on one sequence.

    Attributes:
        config: The configuration.
        guesses: Their guesses.
        rates: Calibration of each source and bucket.
        last: The proposal before the choice, until its verdict is known.
    """

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

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Ask all drafters and merge their drafts.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The chosen tree.
        """
        drafts = [
            await g.propose_draft(
                root, position, budget, rng.child_stream("source", k) if k else rng
            )
            for k, g in enumerate(self.guesses)
        ]
        # The first source whose draft may not be cut: it has drawn nodes or probes.
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
            merged.merge_draft(drafts[first], first * (BUCKETS + 1), self.rates, whole=True)
        whole = len(merged.tree)
        # The others' tokens are put where there is room.
        for k, draft in enumerate(drafts):
            if k != first:
                merged.merge_draft(draft, k * (BUCKETS + 1), self.rates, whole=False)
        # One source's siblings are alternatives that it weighed itself; those of several are
        # evidence against one another.
        if len(drafts) > 1:
            merged.weigh_siblings()
        self.last[:] = [merged]
        out = merged.tree.built_draft()
        keep = merged.best_nodes(whole, budget.nodes, self.config.floor)
        if len(keep) == len(out):
            return out
        return out.only_nodes(keep)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Count which candidates came true, and let all drafters learn.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # There is no proposal at the prompt. Children of each true node are judged, also those that
        # were not fed, until the text leaves the tree.
        for merged in self.last:
            node = 0
            for x in verdict.written_tokens(draft):
                children = merged.tree.children[node]
                for token, child in children.items():
                    for cell in merged.cells[child]:
                        self.rates.add_cases(cell, token == x)
                if x not in children:
                    break
                node = children[x]
        self.last.clear()
        teach_all_guesses(self.guesses, draft, scores, verdict)

    def fork_guess(self, session: Session, choice: int | None = None) -> MergedTreeGuess:
        """Fork all guesses, with a copy of the calibration.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        guesses = tuple(g.fork_guess(session, choice) for g in self.guesses)
        return MergedTreeGuess(self.config, guesses, self.rates.copy(), list(self.last))

    def close(self) -> None:
        for guess in self.guesses:
            guess.close()
