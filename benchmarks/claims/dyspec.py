"""DySpec: tokens per pass of trees that grow where they are likely to be reached, against the best static tree of at most as
many nodes, sampling at T = 1 and T = 0.7. The static shape is the one that is best on the prompts for tuning, and so are the
threshold (floor 0 and fade 1, as published) and the threshold with a floor and a fade that were fitted to such prompts."""

from __future__ import annotations

from collections.abc import Mapping

from drafted import Run, questions, ratio, rounds, row
from seen import arguments, model, report

from polydec.methods.speculative.loop.protocols import TreeGrower, Verifier
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees.best_slot import BestSlotTree
from polydec.methods.speculative.trees.greedy_growth import GreedyGrowthTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier

SHAPES = (
    (1,) * 12,
    (2, 1, 1, 1, 1, 1),
    (3, 1, 1, 1),
    (2, 2, 1, 1),
    (4, 1, 1),
    (3, 2),
    (2, 2, 1),
    (6, 1),
    (12,),
)
"""12 nodes or, where levels do not divide them, a little fewer or the first 12."""


def speed(runs: list[Run]) -> float:
    return sum(r.tokens for r in runs) / sum(r.passes for r in runs)


def settings(
    trees: Mapping[str, TreeGrower], nodes: int
) -> dict[str, tuple[TreeGrower, Verifier, DraftBudget]]:
    return {name: (tree, ExactVerifier(), DraftBudget(12, nodes)) for name, tree in trees.items()}


def main() -> None:
    parser = arguments(
        __doc__,
        model="zoo:tiny",
        dtype="auto",
        prompts=24,
        tokens=64,
        nodes=12,
        tuning=8,
        every=4,
        draws=2,
    )
    args = parser.parse_args()
    lm, out = model(args, "default"), []
    for temperature in (1.0, 0.7):
        static = {f"static {','.join(map(str, s))}": StaticTree(s) for s in SHAPES}
        grown = {f"dyspec, threshold {t}": GreedyGrowthTree(t) for t in (0.03, 0.06, 0.1)}
        fitted = {
            f"dyspec, floor {a}, fade {f}, threshold {t}": GreedyGrowthTree(t, floor=a, fade=f)
            for a, f in ((0.4, 0.4), (0.3, 0.6))
            for t in (0.03, 0.06, 0.1)
        }
        tuned = rounds(
            lm,
            settings({**static, **grown, **fitted}, args.nodes),
            questions(lm, args, tune=True)[: args.tuning],
            args,
            temperature,
            coins=2,
        )
        best, theta, fit = (
            max(names, key=lambda n: speed(tuned[n])) for names in (static, grown, fitted)
        )
        trees = {
            best: static[best],
            theta: grown[theta],
            fit: fitted[fit],
            "dyspec, node by node": BestSlotTree(),
            "the same, fitted": BestSlotTree(floor=fitted[fit].floor, fade=fitted[fit].fade),
            "chain": StaticTree(SHAPES[0]),
        }
        got = rounds(lm, settings(trees, args.nodes), questions(lm, args), args, temperature)
        out += [
            {
                "T": temperature,
                **row(name, runs),
                "over best static": ratio(runs, got[best]),
                "over chain": ratio(runs, got["chain"]),
            }
            for name, runs in got.items()
        ]
    report(
        args,
        f"rounds; at most {args.nodes} nodes; shape and threshold chosen on {args.tuning} prompts for tuning",
        out,
    )


if __name__ == "__main__":
    main()
