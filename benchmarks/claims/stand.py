"""STAND over several samples of one question: tokens per pass by sample number, beside Token Recycling and prompt lookup.

`--tree DIR` names what `polydec train draft-tree` counted, `--tree recorded` the places that travel with `stand`: `counted`
rows have the most accepted places, beside as many of low ranks and beside the shape that is set by hand. `--seeds` repeats all
of it; intervals are over questions and seeds together.

`down to one token` backs off to single tokens too, as Token Recycling's table does (published: two tokens at least).
STAND's rows and Token Recycling's table are shared by the samples of one question and by nothing else; prompt lookup has the
question and the sample itself. Grade-school questions at T = 0.7.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from seen import arguments, decode, interval, lines, model, part, per_pass, report, shaped

from polydec.methods.speculative.drafters._tree_shapes import (
    low_rank_paths,
    most_accepted_paths,
    recorded_places,
    template_child_counts,
)
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.ngram_rows import NgramRowsDrafter, NgramRowStore
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter, RecyclingTable
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import draft_tree

BIG = 80
"""Nodes of the published tree."""


def tree_shapes(folder: str, nodes: int) -> dict[str, tuple[int, ...]]:
    """By a row's name the child counts of a tree: counted places and low ranks, few of them and many."""
    accepted = recorded_places() if folder == "recorded" else draft_tree.load(folder).accepted
    return {
        f"{name} {n} nodes": template_child_counts(paths(n))
        for n in (nodes, BIG)
        for name, paths in (
            ("counted", lambda n: most_accepted_paths(accepted, n)),
            ("low ranks", low_rank_paths),
        )
    }


def main() -> None:
    parser = arguments(__doc__, samples=8, temperature=0.7, nodes=10)
    parser.add_argument("--only", help="comma-separated names of methods")
    parser.add_argument(
        "--tree", help="directory of counted places (polydec train draft-tree), or recorded"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="file to which the rows are written")
    args = parser.parse_args()
    lm, questions = (
        model(args),
        part((r["question"] for r in lines("gsm8k/train.jsonl.gz")), args.prompts, args.tune),
    )
    got: dict[str, list[list[tuple[int, int]]]] = {}
    trees = tree_shapes(args.tree, args.nodes) if args.tree else {}
    for seed, question in itertools.product(range(args.seed, args.seed + args.seeds), questions):
        prompt, rows, short, likeliest, memory = (
            lm.encode_prompt(question),
            NgramRowStore(),
            NgramRowStore(),
            NgramRowStore(),
            RecyclingTable(),
        )
        methods = {
            "stand": (NgramRowsDrafter(store=rows), ExactVerifier()),
            "down to one token": (NgramRowsDrafter(shortest=1, store=short), ExactVerifier()),
            "its likeliest tokens": (
                NgramRowsDrafter(draws=False, store=likeliest),
                MatchVerifier(),
            ),
            "token-recycling": (RecyclingDrafter(8, args.nodes, memory=memory), MatchVerifier()),
            "prompt-lookup": (LookupDrafter(8, growth=2), MatchVerifier()),
        } | {
            name: (NgramRowsDrafter(shape, store=NgramRowStore()), ExactVerifier())
            for name, shape in trees.items()
        }
        for name, (drafter, verifier) in methods.items():
            if args.only and name not in args.only.split(","):
                continue
            results = [
                decode(
                    shaped(lm, args.temperature, seed, i),
                    drafter,
                    verifier,
                    prompt,
                    args,
                    nodes=BIG if name in trees else args.nodes,
                    choice=i,
                    seed=seed,
                )
                for i in range(args.samples)
            ]
            got.setdefault(name, []).append([(len(r.token_ids), r.stats.passes) for r in results])
    out = []
    for name, per_question in got.items():
        row = {"method": name} | {
            f"sample {i + 1}": per_pass([q[i] for q in per_question]) for i in range(args.samples)
        }
        whole = [(sum(t for t, _ in q), sum(p for _, p in q)) for q in per_question]
        row["all"] = per_pass(whole)
        for other in ("stand", "token-recycling", "prompt-lookup", *trees):
            if other in got and other != name:
                theirs = [(sum(t for t, _ in q), sum(p for _, p in q)) for q in got[other]]
                row[f"over {other}"] = "{:.3f} [{:.3f}, {:.3f}]".format(*interval(whole, theirs))
        first, last = [q[0] for q in per_question], [q[-1] for q in per_question]
        row["last over first"] = "{:.3f} [{:.3f}, {:.3f}]".format(*interval(last, first))
        out.append(row)
    if args.csv:
        sys.path.append(str(Path(__file__).parents[1]))
        from csv_rows import write_csv

        # No row has a ratio over itself, so the first one lacks a column of the others.
        names = dict.fromkeys(name for row in out for name in row)
        write_csv(args.csv, [{name: row.get(name, "") for name in names} for row in out])
    report(
        args,
        f"T = {args.temperature}, {args.samples} samples a question, trees of at most {args.nodes} nodes",
        out,
    )


if __name__ == "__main__":
    main()
