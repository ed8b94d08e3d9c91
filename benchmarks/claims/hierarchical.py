"""Hierarchical drafting: what a drafted token costs the draft model where it drafts for itself (Token Recycling's trees,
prompt lookup, and EAGLE-2's with `--eagle DIR`, a layer that was trained for the draft model) against the plain chain of equal
length, greedy; tokens per pass of the target should stay."""

from __future__ import annotations

from drafted import Run, answer, questions, ratio
from seen import arguments, interval, model, per_pass, report

from polydec.methods.speculative.drafters.eagle import FromEagle
from polydec.methods.speculative.drafters.hierarchical import Hierarchical
from polydec.methods.speculative.drafters.lookup import Lookup
from polydec.methods.speculative.drafters.model import FromModel
from polydec.methods.speculative.drafters.recycling import Recycling
from polydec.methods.speculative.policies.fixed import Fixed
from polydec.methods.speculative.trees.best_first import BestFirst
from polydec.methods.speculative.trees.chain import Chain
from polydec.methods.speculative.verifiers.exact import Exact
from polydec.methods.speculative.verifiers.match import Match
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
        "chain": (lambda d: FromModel(d, Chain()), Exact(), Fixed(args.depth)),
        "over recycling": (
            lambda d: Hierarchical(d, Recycling(8, args.nodes), Match(), args.depth, args.nodes),
            Exact(),
            Fixed(args.depth),
        ),
        "over prompt lookup": (
            lambda d: Hierarchical(d, Lookup(8, growth=2), Match(), args.depth, args.nodes),
            Exact(),
            Fixed(args.depth),
        ),
    }
    if args.eagle:
        layer = artefacts.read(args.eagle)
        inner = FromEagle(artefacts.bound(layer, lm.small()), BestFirst(4))
        settings["over EAGLE-2"] = (
            lambda d: Hierarchical(d, inner, Match(), args.depth, args.nodes),
            Exact(),
            Fixed(args.depth),
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
