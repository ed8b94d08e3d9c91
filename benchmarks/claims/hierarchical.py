"""Hierarchical drafting: what a drafted token costs the draft model where it drafts for itself (Token Recycling's trees,
prompt lookup, and EAGLE-2's with `--eagle DIR`, a layer that was trained for the draft model) against the plain chain of equal
length, greedy; tokens per pass of the target should stay."""

from __future__ import annotations

from drafted import Run, answer, questions, ratio
from seen import arguments, interval, model, per_pass, report

from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.hierarchical import HierarchicalDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned import artefacts


def fewer(ours: list[Run], theirs: list[Run]) -> str:
    """Drafted tokens per pass of the draft model, over theirs."""
    pairs = [[(r.drafted, r.draft_passes) for r in runs] for runs in (ours, theirs)]
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(*pairs))


def main() -> None:
    parser = arguments(
        __doc__, model="zoo:tiny", dtype="auto", prompts=24, tokens=96, depth=6, nodes=7
    )
    parser.add_argument("--eagle", help="a directory that `polydec train eagle` made of the draft")
    args = parser.parse_args()
    lm = model(args, "default")
    settings = {
        "chain": (lambda d: ModelDrafter(d, ChainTree()), ExactVerifier(), FixedPolicy(args.depth)),
        "over recycling": (
            lambda d: HierarchicalDrafter(
                d, RecyclingDrafter(8, args.nodes), MatchVerifier(), args.depth, args.nodes
            ),
            ExactVerifier(),
            FixedPolicy(args.depth),
        ),
        "over prompt lookup": (
            lambda d: HierarchicalDrafter(
                d, LookupDrafter(8, growth=2), MatchVerifier(), args.depth, args.nodes
            ),
            ExactVerifier(),
            FixedPolicy(args.depth),
        ),
    }
    if args.eagle:
        layer = artefacts.load_artefact(args.eagle)
        inner = EagleDrafter(artefacts.bind_artefact(layer, lm.draft_law()), BestFirstTree(4))
        settings["over EAGLE-2"] = (
            lambda d: HierarchicalDrafter(d, inner, MatchVerifier(), args.depth, args.nodes),
            ExactVerifier(),
            FixedPolicy(args.depth),
        )
    got: dict[str, list[Run]] = {name: [] for name in settings}
    for prompt in questions(lm, args):
        for name, setting in settings.items():
            got[name].append(answer(lm, setting, prompt, args, 0.0))
    out = []
    for name, runs in got.items():
        all_ = sum(runs[1:], runs[0])
        out.append(
            {
                "drafts": name,
                "tokens per pass": per_pass([(r.tokens, r.passes) for r in runs]),
                "over chain": ratio(runs, got["chain"]),
                "draft passes per drafted token": all_.draft_passes / all_.drafted,
                "draft positions per drafted token": all_.draft_positions / all_.drafted,
                "drafted per draft pass, over chain": fewer(runs, got["chain"]),
            }
        )
    report(args, f"greedy, chains of {args.depth}, inner drafts of at most {args.nodes} nodes", out)


if __name__ == "__main__":
    main()
