"""The contract of acceptance: where the best is known, a method does not fall below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import exp
from typing import Any

from polydec.core.decoder import answer_one
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, Exactness, ScoreRequest
from polydec.lab.testing.exercised_counts import (
    ContractCounts,
    require_exercised,
    require_mechanism_exercised,
)
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.loop.protocols import TreeGrower, Verifier
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class AcceptanceCounts(ContractCounts):
    """What a check saw of drafts that the target's own law had made.

    Attributes:
        drafted: Drafted tokens.
        accepted: Those that were accepted.
        greedy: Accepted tokens under a greedy law, where the right one must be among the children
            of a node.
        sampled: Accepted tokens that had been drawn, or stood beside drawn ones, under a law that
            is drawn from.
    """

    drafted: int = 0
    accepted: int = 0
    greedy: int = 0
    sampled: int = 0


@dataclass(frozen=True)
class BestTreeCounts(ContractCounts):
    """What a check saw a tree choose.

    Attributes:
        nodes: Nodes of all trees.
        left_out: Paths that were there to choose from, and are in no tree.
        distinct: Laws under which the tree's paths were others than under the first one.
    """

    nodes: int = 0
    left_out: int = 0
    distinct: int = 0


@dataclass(frozen=True)
class WitnessVerifier:
    """A verifier that also notes where a draft from the target's own law was rejected.

    Attributes:
        inner: The verifier that decides.
        law: Name of the kind of law, "greedy" or "sampled", under which accepted tokens are
            counted.
        seen: What was counted so far, by the names of AcceptanceCounts.
        rejected: A sentence for each round whose draft could not be wrong, and yet was rejected.
    """

    inner: Verifier
    law: str
    seen: Counter[str]
    rejected: list[str]

    @property
    def exactness(self) -> Exactness:
        return self.inner.exactness

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Decide as the inner verifier does, count, and note what should have been accepted.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The inner verifier's verdict.
        """
        verdict = self.inner.verify_draft(draft, scores, rng, position)
        self.seen["drafted"] += len(draft) - 1
        self.seen["accepted"] += len(verdict.path)
        # The nodes whose child was accepted: all of the path but its end.
        above = (0, *verdict.path)[: len(verdict.path)]
        self.seen[self.law] += sum(self._must_accept(draft, scores, node) for node in above)
        if verdict.path:
            last = verdict.path[-1]
        else:
            last = 0
        children = draft.children[last]
        # The path ends here although one of the children had to be right: the verifier, or the
        # drafter's law, is wrong.
        if self._must_accept(draft, scores, last):
            tokens = [draft.token[c] for c in children]
            self.rejected.append(
                f"at position {position + len(verdict.path)} {tokens} were drafted, {verdict.bonus} was taken"
            )
        return verdict

    def _must_accept(self, draft: Draft, scores: DraftScores, node: int) -> bool:
        """Whether one of the node's children is right in any case."""
        children = draft.children[node]
        drawn = any(draft.law[c] is not None for c in children)
        return drawn or bool(children and scores.certain_token(node) is not None)


def check_acceptance(
    make: Callable[[Target, Target], Any],
    *,
    greedy: bool = True,
    sampled: bool = True,
    unexercised: Mapping[str, str] | None = None,
) -> AcceptanceCounts:
    """Check that a decoder whose draft model equals its target never has a draft rejected.

    Of drawn children one is accepted wherever there are any, and under a greedy law every node with
    children has the right one among them. Certain candidates under a law that is drawn from may be
    wrong: of them nothing is required.

    Args:
        make: From (target, draft) to a decoder with a `verifier`, whose drafts come from the draft
            model alone.
        greedy: Whether to look under greedy laws. Default True.
        sampled: Whether to look under laws that are drawn from. Default True.
        unexercised: By the name of a count (AcceptanceCounts), one sentence that says why it is 0
            ("sampled": of candidates that are certain). None: none is.

    Returns:
        The counts.

    Raises:
        AssertionError: Such a draft was rejected, or nothing was drafted.
    """
    seen = Counter[str]()
    for seed, size in product(range(2), (3, 6)):
        for shapers in ((GreedyRule(),),) * greedy + ((),) * sampled:
            target, draft = (
                # One law twice, as target and as cheaper draft: every rejection is a fault.
                ShapedTarget(toy_law(seed, size, eos=-1, cost=cost), *shapers)
                for cost in (1.0, 0.1)
            )
            law = "greedy" if shapers else "sampled"
            before = seen["drafted"]
            # A verifier that watches stands in the place of the real one, and changes nothing.
            decoder = make(target, draft)
            rejected = list[str]()
            decoder = replace(
                decoder, verifier=WitnessVerifier(decoder.verifier, law, seen, rejected)
            )
            requests = [
                Request((0, 1, 2, 0)[: 2 + i], 24, ignore_eos=True, seed=seed + i) for i in range(3)
            ]
            run_coroutines([answer_one(decoder, r) for r in requests])
            # A check that saw no draft has checked nothing.
            assert seen["drafted"] > before, "nothing was drafted"
            assert not rejected, (
                f"{law} law {seed} over {size} tokens, draft and target equal: {rejected[0]}"
            )
    counts = AcceptanceCounts(**seen)
    wanted = ["drafted", "accepted"] + ["greedy"] * greedy + ["sampled"] * sampled
    require_exercised(counts, "a check of acceptance", wanted, unexercised)
    return counts


def check_best_tree(
    tree: TreeGrower, nodes: int, *, beam: int | None = None, depth: int = 4, laws: int = 40
) -> BestTreeCounts:
    """Check that the tree's nodes, which are certain, have the likeliest paths.

    No other tree of as many nodes and levels is expected to have more of them accepted. A class
    attribute `unexercised` of the tree says, by the name of a count (BestTreeCounts), why that is
    0.

    Args:
        tree: The tree.
        nodes: Nodes of the budget, the root not counted.
        beam: Width of a beam that goes on from the `beam` likeliest paths of a level with the
            `beam` likeliest tokens of each: the tree is compared with the paths that it finds.
            None: with all paths there are (a beam finds the best `nodes` of them if it is no
            narrower).
        depth: Levels of the budget. Default 4.
        laws: Random laws to grow trees under, at least 2. Default 40.

    Returns:
        The counts.

    Raises:
        AssertionError: A node was drawn, there are too many, or a better tree exists.
    """
    seen = Counter[str]()
    first = None
    for seed in range(laws):
        target = toy_law(seed, 3 + seed % 2, eos=-1, sharp=1.0 + seed % 4)

        async def grown_tree(target: Target = target) -> Draft:
            return await tree.grow_tree(
                target.open_session((0, 1)), 1, 2, DraftBudget(depth, nodes), Rng.of_choice(0)
            )

        draft = run_coroutines([grown_tree()])[0]
        assert all(draw is DrawKind.CERTAIN for draw in draft.draw), (
            "a node was drawn: its chance is not its path's probability"
        )
        values = _values(target, depth)
        paths = {
            tuple(draft.token[i] for i in draft.path_to(node)) for node in range(1, len(draft))
        }
        assert len(paths) <= nodes, f"law {seed}: {len(paths)} paths are more than {nodes}"
        # The expected number of accepted nodes is the sum of the probabilities of their paths.
        got = sum(map(values.__getitem__, paths))
        # Without a beam every path can be chosen, so the best tree is that of the likeliest paths.
        if beam is None:
            found = list(values.values())
        else:
            found = _found(values, beam, depth)
        best = sum(sorted(found, reverse=True)[:nodes])
        first = paths if first is None else first
        seen["nodes"] += len(paths)
        seen["left_out"] += len(found) - len(paths)
        seen["distinct"] += paths != first
        # Sums of the same numbers in another order differ in their last digits.
        assert got > best - 1e-9, (
            f"law {seed}: {got:.4f} tokens are expected of {nodes} nodes, {best:.4f} can be"
        )
    counts = BestTreeCounts(**seen)
    require_mechanism_exercised(counts, tree)
    return counts


def _values(target: Target, depth: int) -> dict[tuple[int, ...], float]:
    """The probability of every path: one pass over the tree of all."""
    # All paths as one draft: prefixes stand before what continues them.
    whole = TreeBuilder(1)
    paths: dict[tuple[int, ...], int] = {(): 0}
    for n in range(1, depth + 1):
        for path in product(range(target.vocab.size), repeat=n):
            paths[path] = whole.add_node(paths[path[:-1]], path[-1])

    async def score_once() -> DraftScores:
        return await target.open_session((0, 1)).score_draft(whole.built_draft(), ScoreRequest())

    scores = run_coroutines([score_once()])[0]
    out: dict[tuple[int, ...], float] = {(): 1.0}
    for path in paths:
        if path:
            # Chain rule: a prefix is in the table before any path that goes on from it.
            out[path] = out[path[:-1]] * exp(scores.token_logprobs(paths[path[:-1]], path[-1:])[0])
    del out[()]
    return out


def _found(values: dict[tuple[int, ...], float], beam: int, depth: int) -> list[float]:
    """The values of the paths that a beam finds."""
    tips = list[tuple[int, ...]]([()])
    out = list[float]()
    for n in range(1, depth + 1):
        level = list[tuple[int, ...]]()
        for tip in tips:
            children = [path for path in values if len(path) == n and path[:-1] == tip]
            level += sorted(children, key=values.__getitem__, reverse=True)[:beam]
        out += [values[path] for path in level]
        tips = sorted(level, key=values.__getitem__, reverse=True)[:beam]
    return out
