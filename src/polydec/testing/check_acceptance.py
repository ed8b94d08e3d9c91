"""The contract of acceptance: where the best is known, a method does not fall below it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import exp
from typing import Any

from polydec.core.decoder import answer_one
from polydec.core.protocols import Scores, Target
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run
from polydec.core.types import Draft, Draw, Exactness, Want
from polydec.drafting.tree_builder import TreeBuilder
from polydec.families.ar.protocols import Tree, Verifier
from polydec.families.ar.types import Budget, Verdict
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.testing.toy import toy


@dataclass(frozen=True)
class Witness:
    """A verifier that also says of which drafts it drew a token although the draft had come from the target's own law."""

    inner: Verifier
    drafted: list[int]
    rejected: list[str]

    @property
    def exactness(self) -> Exactness:
        return self.inner.exactness

    def verify(self, draft: Draft, scores: Scores, rng: Rng, position: int) -> Verdict:
        verdict = self.inner.verify(draft, scores, rng, position)
        self.drafted.append(len(draft) - 1)
        last = verdict.path[-1] if verdict.path else 0
        children = draft.children[last]
        drawn = any(draft.law[c] is not None for c in children)
        if drawn or (children and scores.certain(last) is not None):
            tokens = [draft.token[c] for c in children]
            self.rejected.append(
                f"at position {position + len(verdict.path)} {tokens} were drafted, {verdict.bonus} was taken"
            )
        return verdict


def check_acceptance(
    make: Callable[[Target, Target], Any], *, greedy: bool = True, sampled: bool = True
) -> None:
    """Raise AssertionError unless a decoder whose draft model equals its target never has a draft rejected: of drawn children
    one is accepted wherever there are any, and under a greedy law every node with children has the right one among them.
    Certain candidates under a law that is drawn from may be wrong, and nothing is said of them.

    make: (target, draft) -> a decoder with a `verifier`, whose drafts come from the draft model alone; greedy, sampled:
    under which laws to look.
    """
    for seed, size in product(range(2), (3, 6)):
        for shapers in ((Greedy(),),) * greedy + ((),) * sampled:
            target, draft = (
                Shaped(toy(seed, size, eos=-1, cost=cost), *shapers) for cost in (1.0, 0.1)
            )
            decoder, drafted, rejected = make(target, draft), list[int](), list[str]()
            decoder = replace(decoder, verifier=Witness(decoder.verifier, drafted, rejected))
            requests = [
                Request((0, 1, 2, 0)[: 2 + i], 24, ignore_eos=True, seed=seed + i) for i in range(3)
            ]
            run([answer_one(decoder, r) for r in requests])
            assert sum(drafted), "nothing was drafted"
            law = "greedy" if shapers else "sampled"
            assert not rejected, (
                f"{law} law {seed} over {size} tokens, draft and target equal: {rejected[0]}"
            )


def check_best_tree(
    tree: Tree, nodes: int, *, beam: int | None = None, depth: int = 4, laws: int = 40
) -> None:
    """Raise AssertionError unless the tree's nodes, which are certain, have the likeliest paths: no other tree of `nodes`
    nodes and `depth` levels is expected to have more of them accepted.

    beam: only among the paths that a beam finds, which goes on from the `beam` likeliest paths of a level with the `beam`
    likeliest tokens of each; None: among all there are (a beam finds the best `nodes` of them if it is no narrower).
    """
    for seed in range(laws):
        target = toy(seed, 3 + seed % 2, eos=-1, sharp=1.0 + seed % 4)

        async def grown(target: Target = target) -> Draft:
            return await tree.grow(target.open((0, 1)), 1, 2, Budget(depth, nodes), Rng.of(0))

        draft = run([grown()])[0]
        assert all(draw is Draw.CERTAIN for draw in draft.draw), (
            "a node was drawn: its chance is not its path's probability"
        )
        values = _values(target, depth)
        got = sum(
            values[tuple(draft.token[i] for i in draft.path_to(node))]
            for node in range(1, len(draft))
        )
        seen = values.values() if beam is None else _found(values, beam, depth)
        best = sum(sorted(seen, reverse=True)[:nodes])
        assert got > best - 1e-9, (
            f"law {seed}: {got:.4f} tokens are expected of {nodes} nodes, {best:.4f} can be"
        )


def _values(target: Target, depth: int) -> dict[tuple[int, ...], float]:
    """The probability of every path: one pass over the tree of all."""
    whole = TreeBuilder(1)
    paths: dict[tuple[int, ...], int] = {(): 0}
    for n in range(1, depth + 1):
        for path in product(range(target.vocab.size), repeat=n):
            paths[path] = whole.add(paths[path[:-1]], path[-1])

    async def score() -> Scores:
        return await target.open((0, 1)).score(whole.draft(), Want())

    scores = run([score()])[0]
    out: dict[tuple[int, ...], float] = {(): 1.0}
    for path in paths:
        if path:
            out[path] = out[path[:-1]] * exp(scores.logp(paths[path[:-1]], path[-1:])[0])
    del out[()]
    return out


def _found(values: dict[tuple[int, ...], float], beam: int, depth: int) -> list[float]:
    """The values of the paths that a beam finds."""
    tips, out = list[tuple[int, ...]]([()]), list[float]()
    for n in range(1, depth + 1):
        level = list[tuple[int, ...]]()
        for tip in tips:
            children = [path for path in values if len(path) == n and path[:-1] == tip]
            level += sorted(children, key=values.__getitem__, reverse=True)[:beam]
        out += [values[path] for path in level]
        tips = sorted(level, key=values.__getitem__, reverse=True)[:beam]
    return out
