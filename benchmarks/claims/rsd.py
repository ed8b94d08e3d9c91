"""Recursive speculative decoding: trees without replacement against the i.i.d. tree of equal shape and the chain of equal
nodes, in tokens per pass of the target, sampling at T = 1 and T = 0.7."""

from __future__ import annotations

from drafted import questions, ratio, rounds, row
from seen import arguments, model, report

from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.trees.stochastic_beam import StochasticBeamTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier

SHAPES = {6: ((2, 1, 1), 2), 12: ((3, 1, 1, 1), 3)}
"""Nodes: (children by level of the trees, width of the beam of as many levels)."""


def main() -> None:
    args = arguments(
        __doc__, model="zoo:tiny", dtype="auto", prompts=24, tokens=64, every=4, draws=2
    ).parse_args()
    lm, out = model(args, "default"), []
    prompts = questions(lm, args)
    for temperature in (1.0, 0.7):
        trees = {}
        for nodes, (levels, width) in SHAPES.items():
            for name, tree in (
                ("rsd-s", StochasticBeamTree(width)),
                ("rsd-c", StaticTree(levels)),
                ("i.i.d. tree", StaticTree(levels, replace=True)),
                ("chain", ChainTree()),
            ):
                trees[f"{name}, {nodes} nodes"] = (
                    tree,
                    ExactVerifier(),
                    DraftBudget(nodes if name == "chain" else len(levels), nodes),
                )
        got = rounds(lm, trees, prompts, args, temperature)
        for name, runs in got.items():
            nodes = name.split(", ")[1]
            out.append(
                {
                    "T": temperature,
                    **row(name, runs),
                    "over i.i.d. tree": ratio(runs, got[f"i.i.d. tree, {nodes}"]),
                    "over chain": ratio(runs, got[f"chain, {nodes}"]),
                }
            )
    report(
        args,
        "rounds; trees 2,1,1 and 3,1,1,1, beams of equal depth and nodes, chains of equal nodes",
        out,
    )


if __name__ == "__main__":
    main()
