"""ADED with adaptation on and off: tokens per pass, greedy, on grade-school questions.

The table holds the trigrams of written solutions (the tuning part of the same set), or nothing but the prompt's. Rows: the
table as it stands, the published adaptation (the last 16 tokens at every pass), ours (each new trigram once); searched as by
default, and best first without a search.
"""

from __future__ import annotations

from seen import arguments, decode, interval, lines, model, part, per_pass, report, shaped

from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.trigram import TrigramDrafter, TrigramWeights
from polydec.methods.speculative.verifiers.match import MatchVerifier


def main() -> None:
    parser = arguments(__doc__, nodes=8, corpus=2000)
    args = parser.parse_args()
    lm, rows = model(args), list(lines("gsm8k/train.jsonl.gz"))
    questions = part((r["question"] for r in rows), args.prompts, args.tune)
    corpus = part(rows, args.corpus, True, key=lambda r: r["question"])
    table = TrigramWeights.of_corpus(
        lm.encode_prompt(r["answer"], raw=True) for r in corpus if r["question"] not in questions
    )
    methods = {"prompt-lookup": LookupDrafter(8, growth=2)}
    for name, given in (("table", table), ("no table", TrigramWeights())):
        methods |= {
            f"{name}, static": TrigramDrafter(rate=0.0, table=given),
            f"{name}, adapting": TrigramDrafter(table=given),
            f"{name}, adapting as published": TrigramDrafter(
                window=16, longest_first=True, table=given
            ),
            f"{name}, adapting, best first": TrigramDrafter(0, table=given),
        }
    got: dict[str, list[tuple[int, int]]] = {}
    fed: dict[str, int] = {}
    for question in questions:
        for name, drafter in methods.items():
            r = decode(
                shaped(lm, 0.0),
                drafter,
                MatchVerifier(),
                lm.encode_prompt(question),
                args,
                nodes=args.nodes,
            )
            got.setdefault(name, []).append((len(r.token_ids), r.stats.passes))
            fed[name] = fed.get(name, 0) + r.stats.drafted
    out = []
    for name, pairs in got.items():
        row = {
            "method": name,
            "tokens per pass": per_pass(pairs),
            "drafted per pass": fed[name] / sum(p for _, p in pairs),
        }
        static = f"{name.split(',')[0]}, static"
        if static in got and static != name:
            row["over static"] = "{:.3f} [{:.3f}, {:.3f}]".format(*interval(pairs, got[static]))
        out.append(row)
    report(
        args,
        f"greedy, trees of at most {args.nodes} nodes, a table of {len(corpus)} solutions",
        out,
    )


if __name__ == "__main__":
    main()
