"""The contract of trees."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polydec.core.law import exclude_token, float64_probabilities
from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, ScoreRequest
from polydec.lab.testing.enumerate import enumerate_executions
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget

BUDGETS = {
    "nothing": DraftBudget(0, 0),
    "one level": DraftBudget(1, 8),
    "two levels": DraftBudget(2, 6),
    "two nodes": DraftBudget(4, 2),
    "stop at once": DraftBudget(4, 8, go_on=lambda depth, q: False),
    "stop after a weak draw": DraftBudget(2, 8, go_on=lambda depth, q: q > 0.3),
}


@dataclass(frozen=True)
class TreeCounts(ContractCounts):
    """What a check saw a tree do, over all executions.

    Attributes:
        drawn: Nodes whose token was drawn from a law.
        siblings: Nodes that stand behind another one below the same parent.
        deeper: Nodes below another drafted one.
        stopped: Nodes with levels left below which nothing stands, as the budget's `go_on` says.
    """

    drawn: int = 0
    siblings: int = 0
    deeper: int = 0
    stopped: int = 0


def check_tree(tree: TreeGrower, *, tolerance: float = 1e-9) -> TreeCounts:
    """Check everything that a tree promises.

    It stays within its budget, and every node says truly how it was drawn: its law is the draft's
    row after its path, and over all executions its token, given its ancestors and the siblings
    before it, has that law (without replacement: what the siblings left of it). So nothing may be
    drawn from another law, dropped or reordered for what it turned out to be. Certain nodes are the
    same in every execution and differ from their siblings. Under a greedy draft all are certain,
    the draft's token first among siblings. A class attribute `unexercised` of the tree says, by the
    name of a count (TreeCounts), why that is 0.

    Args:
        tree: The tree.
        tolerance: Of probabilities, at least 0.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    seen = Counter[str]()
    for name, budget in BUDGETS.items():
        for seed in (1, 2) if name != "nothing" else (1,):
            _draws(tree, toy_law(seed), name, budget, tolerance, seen)
    # Under a greedy law nothing is left to chance: every node is certain, in the order of the
    # draft's row.
    for draft in _grown(tree, ShapedTarget(toy_law(3), GreedyRule()), DraftBudget(3, 8)):
        row = [_row(toy_law(3), _path(draft, p)) for p in range(len(draft))]
        assert len(draft) > 1, "a greedy draft was not used"
        for i in range(1, len(draft)):
            assert draft.draw[i] is DrawKind.CERTAIN and draft.law[i] is None, (
                "a greedy draft's token is certain, without a law"
            )
        for p, children in enumerate(draft.children):
            tokens = [draft.token[c] for c in children]
            assert not tokens or tokens[0] == int(row[p].argmax()), (
                "a greedy draft's first token is not the likeliest"
            )
            assert len(tokens) == len(set(tokens)), "a token stands twice among certain siblings"
    _names(tree)
    counts = TreeCounts(**seen)
    require_mechanism_exercised(counts, tree)
    return counts


def _grow(tree: TreeGrower, target: Target, budget: DraftBudget, rng: Any) -> Draft:
    return run_coroutines([tree.grow_tree(target.open_session((0, 1)), 1, 2, budget, rng)])[0]


def _grown(tree: TreeGrower, target: Target, budget: DraftBudget) -> Iterator[Draft]:
    make: Callable[[Any], Draft] = lambda rng: _grow(tree, target, budget, rng)  # noqa: E731
    return (draft for draft, _ in enumerate_executions(make))


def _path(draft: Draft, node: int) -> tuple[int, ...]:
    return tuple(draft.token[i] for i in draft.path_to(node))


def _row(target: Target, path: Sequence[int]) -> Tensor:
    async def score_once() -> Tensor:
        return (
            await target.open_session((0, 1)).score_draft(
                Draft.chain_draft(1, path), ScoreRequest()
            )
        ).logprob_row(len(path))

    return run_coroutines([score_once()])[0]


def _draws(
    tree: TreeGrower,
    target: Target,
    name: str,
    budget: DraftBudget,
    tolerance: float,
    counts: Counter[str],
) -> None:
    # By (path above, siblings before, kind of draw): the summed probability of each token.
    seen: defaultdict[Any, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    rows: dict[tuple[int, ...], Tensor] = {}
    sure: set[tuple[tuple[int, ...], ...]] = set()
    for draft, p in enumerate_executions(lambda rng: _grow(tree, target, budget, rng)):
        assert draft.token[0] == 1, f"budget {name}: node 0 is {draft.token[0]}, not the root"
        assert all(a < i for i, a in enumerate(draft.parent)), (
            f"budget {name}: a node stands before its parent"
        )
        assert max(draft.depth) <= budget.depth, (
            f"budget {name}: depth {max(draft.depth)} is over the budget's {budget.depth}"
        )
        assert len(draft) - 1 <= budget.nodes, (
            f"budget {name}: {len(draft) - 1} nodes are over the budget's {budget.nodes}"
        )
        assert len(draft) > 1 or not budget.nodes, f"budget {name}: nothing was drawn"
        # Which nodes are certain is settled before anything is drawn: it is one set over all
        # executions.
        sure.add(
            tuple(
                _path(draft, i) for i in range(1, len(draft)) if draft.draw[i] is DrawKind.CERTAIN
            )
        )
        assert len(sure) == 1, f"budget {name}: which nodes are certain hangs on what was drawn"
        assert all(len(s) == len(set(s)) for s in sure), (
            f"budget {name}: a certain node stands twice"
        )
        for node, children in enumerate(draft.children):
            path = _path(draft, node)
            before = tuple[int, ...]()
            counts["siblings"] += max(0, len(children) - 1)
            if node:
                counts["deeper"] += len(children)
            if path not in rows:
                rows[path] = _row(target, path)
            if node:
                # The probability with which the node was drawn, which is what `go_on` is asked
                # with.
                q = float(
                    float64_probabilities(rows[_path(draft, draft.parent[node])])[draft.token[node]]
                )
                goes_on = budget.go_on(draft.depth[node], q)
                assert goes_on or not children, (
                    f"budget {name}: something stands below a draw where go_on said stop"
                )
                counts["stopped"] += not goes_on and draft.depth[node] < budget.depth
            for c in children:
                law_V = draft.law[c]
                assert (law_V is None) == (draft.draw[c] is DrawKind.CERTAIN), (
                    f"budget {name}: a drawn node has no law"
                )
                if law_V is None:
                    continue
                counts["drawn"] += 1
                assert (
                    float(
                        (float64_probabilities(law_V) - float64_probabilities(rows[path]))
                        .abs()
                        .max()
                    )
                    < tolerance
                ), f"budget {name}: the law of a node below {path} is not the draft's row there"
                seen[
                    # With replacement only the number of siblings before matters; without it, which
                    # ones they were.
                    path,
                    before if draft.draw[c] is DrawKind.WITHOUT else len(before),
                    draft.draw[c],
                ][draft.token[c]] += p
                before = (*before, draft.token[c])
    # Given what stands before it, each token must have the draft's law: normalised to the
    # executions that reached this place.
    for (path, before, draw), got in seen.items():
        want_V = float64_probabilities(rows[path])
        for x in before if draw is DrawKind.WITHOUT else ():
            # Without replacement the siblings' tokens are gone from the law.
            want_V = exclude_token(want_V, x)
        total = sum(got.values())
        off = max(abs(got[x] / total - float(want_V[x])) for x in range(len(want_V)))
        assert off < tolerance, (
            f"budget {name}: what is drawn below {path} after siblings {before} is off its law by {off:.2e}"
        )


def _names(tree: TreeGrower) -> None:
    """Rounds draw under names of their own."""
    rng, target = StrictRng.of_choice(4), toy_law(4, 5)

    async def round_names() -> None:
        session = target.open_session((0, 1))
        root = 1
        text = [0, 1]
        for _ in range(4):
            draft = await tree.grow_tree(session, root, len(text), DraftBudget(3, 8), rng)  # type: ignore[arg-type]
            session.commit_tokens((root,))
            # Another token than was drafted: the next round drafts below a text of its own.
            root = (draft.token[-1] + 1) % 4
            text.append(root)

    run_coroutines([round_names()])
