"""How many tokens a pass a drafter on the target's states brings beside copies and counts, were drafts and rows free: what
`auto` could win by it at most."""

from __future__ import annotations

from typing import Any

from seen import DATA, Pair, arguments, decode, interval, model, per_pass, report, shaped

from polydec.lab.train.selfplay import draw_prompts
from polydec.methods.speculative.drafters.copy_ngram_mixture import CopyNGramMixtureDrafter
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.merged_tree import MergedTreeDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds.eagle3 import Eagle3Model
from polydec.models.learned.kinds.ngrams import NGrams

LAWS = {"greedy": (0.0, 1.0), "greedy, penalty 1.1": (0.0, 1.1), "T = 0.7": (0.7, 1.0)}
"""Temperature and repetition penalty."""


def main() -> None:
    parser = arguments(__doc__, prompts=3, tokens=128, seed=9)
    parser.add_argument(
        "--trained",
        default="zoo:smollm2-states",
        help="an EAGLE-3 drafter: a directory or zoo:NAME",
    )
    parser.add_argument("--nodes", type=int, default=48, help="of a tree")
    parser.add_argument("--width", type=int, default=4, help="of the tree of the drafter on states")
    args = parser.parse_args()
    lm = model(args, trained=(args.trained,))
    kit, rows = lm.recipe_kit(), list[dict[str, Any]]()
    copies = CopyNGramMixtureDrafter(SuffixDrafter(floor=0.05), kit.needed_artefact(NGrams))
    states = EagleDrafter(kit.needed_artefact(Eagle3Model), BestFirstTree(args.width))
    drafters = {
        "copies and counts": copies,
        "states": states,
        "both": MergedTreeDrafter((copies, states)),
    }
    given = [
        lm.encode_prompt(text)
        for _, text in draw_prompts(DATA, args.prompts, unseen=True, seed=args.seed, longest=1200)
    ]
    for law, (temperature, penalty) in LAWS.items():
        target, pairs = (
            shaped(lm, temperature, args.seed, repetition_penalty=penalty),
            dict[str, list[Pair]](),
        )
        for name, drafter in drafters.items():
            done = [
                decode(target, drafter, MatchVerifier(), ids, args, depth=12, nodes=args.nodes)
                for ids in given
            ]
            pairs[name] = [(len(r.token_ids), r.stats.passes) for r in done]
        gain, low, high = interval(pairs["both"], pairs["copies and counts"])
        rows.append(
            {
                "law": law,
                **{name: round(per_pass(some), 2) for name, some in pairs.items()},
                "both over copies": f"{gain:.2f} ({low:.2f} to {high:.2f})",
            }
        )
    report(args, f"trees of at most {args.nodes} nodes, {len(given)} held-out prompts", rows)


if __name__ == "__main__":
    main()
