"""Early exit with and without an early-exit loss: how often each exit's likeliest token is the text's, how much of drafts of
six is accepted, and layer passes per token of the best length; greedy texts of each model, replayed exactly (see exits.py).

--model: trained with the loss (see dynamic_exit.py for a command), --base: without. Exits are compared at equal share of the
layers. With --time the recipe is timed at each exit with its best length.
"""

from __future__ import annotations

import argparse
from typing import Any

from exits import greedy, hits, prompts, rate, replay
from seen import arguments, model, report

from polydec.lab.bench.measure import BenchTask, MethodSetting, bench_table_rows, measure_methods
from polydec.lab.train.data import KINDS


def main() -> None:
    parser = arguments(
        __doc__,
        model="zoo:tiny",
        base="zoo:tiny",
        prompts=30,
        tokens=96,
        begin=96,
        longest=10,
        penalty=1.0,
        repeats=2,
    )
    parser.add_argument(
        "--time", action="store_true", help="tokens per second of plain decoding and of each exit"
    )
    args, rows = parser.parse_args(), list[dict[str, Any]]()
    for name in dict.fromkeys((args.model, args.base)):
        lm = model(argparse.Namespace(**{**vars(args), "model": name}))
        L, given = lm.network.layers, prompts(lm, args, args.tune)
        texts = [greedy(lm, p, args) for _, p in given]
        every, best = (
            [hits(lm, p, t, args.penalty) for (_, p), t in zip(given, texts)],
            dict[int, int](),
        )
        for e in range(1, L):
            hit = [h[e - 1] for h in every]

            def passes(g: int, e: int = e, hit: list[list[bool]] = hit, L: int = L) -> float:
                return sum(replay(h, e, g, L)[3] for h in hit) / sum(map(len, hit))

            best[e] = min(range(1, args.longest + 1), key=passes)
            rows.append(
                {
                    "model": name,
                    "exit": f"{e} of {L}",
                    "share": e / L,
                    "agrees": sum(map(sum, hit)) / sum(map(len, hit)),
                    "accepted of six": rate(hit),
                    **{
                        k: rate([h for h, (kind, _) in zip(hit, given) if kind == k]) for k in KINDS
                    },
                    "best length": best[e],
                    "layer passes over plain": passes(best[e]) / L,
                }
            )
        if args.time:
            methods = [
                MethodSetting("plain", {}),
                *(
                    MethodSetting("layerskip", {"exit": str(e), "depth": str(g)})
                    for e, g in best.items()
                ),
            ]
            tasks = [BenchTask("documents", (p,), raw=True) for _, p in given]
            runs = measure_methods(
                lm,
                methods,
                tasks,
                sampling=lm.sampling_with(temperature=0.0),
                max_tokens=args.tokens,
                repeats=args.repeats,
            )
            rows += bench_table_rows(lm, runs, tasks)
    report(args, f"greedy, repetition penalty {args.penalty}", rows)


if __name__ == "__main__":
    main()
