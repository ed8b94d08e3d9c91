"""Lookahead and Jacobi decoding: tokens per pass of the target and positions fed per token, greedy, on questions and on code.

The paper's point is that tokens per pass grow with the window at the cost of positions; where a position costs, as on a CPU,
what counts is both. Prompt lookup stands beside them. With --penalty the same under a repetition penalty (greedy answers of a
small model loop, which flatters drafts).
"""

from __future__ import annotations

import argparse

from seen import arguments, interval, lines, model, part, per_pass, report, shaped

from polydec.api import LoadedModel
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler
from polydec.lab.testing.kits import build

METHODS = {
    "plain": ("plain", {}),
    "jacobi 4": ("jacobi", {"block": 4}),
    "jacobi 8": ("jacobi", {"block": 8}),
    "prompt-lookup": ("prompt-lookup", {"cost_aware": False}),
    **{
        f"lookahead {w}/{n}/{g}": ("lookahead", {"window": w, "ngram": n, "guesses": g})
        for w, n, g in ((2, 3, 2), (4, 3, 4), (8, 3, 8), (4, 4, 4), (7, 5, 7), (15, 5, 15))
    },
}


def prompts(lm: LoadedModel, args: argparse.Namespace) -> dict[str, list[tuple[int, ...]]]:
    """Spec-Bench's first turns through the chat template, and beginnings of Python files as they stand."""
    turns = part(
        (r["turns"][0] for r in lines("spec_bench/question.jsonl") if len(r["turns"][0]) < 1200),
        10**6,
        args.tune,
    )
    files = part(
        (r["text"] for r in lines("text_python/python-0.jsonl.gz") if len(r["text"]) > 1500),
        400,
        args.tune,
    )
    return {
        "questions": [
            lm.encode_prompt(t)
            for t in turns[:: max(1, len(turns) // args.prompts)][: args.prompts]
        ],
        "code": [
            lm.encode_prompt(t[:1500], raw=True)[:200]
            for t in files[:: max(1, len(files) // args.prompts)][: args.prompts]
        ],
    }


def main() -> None:
    parser = arguments(__doc__, tokens=64)
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated, plain first")
    args = parser.parse_args()
    lm, out = model(args), []
    target = shaped(lm, 0.0, repetition_penalty=args.penalty)
    for workload, rows in prompts(lm, args).items():
        got: dict[str, list[tuple[int, int]]] = {}
        fed, texts = dict[str, int](), dict[str, list[tuple[int, ...]]]()
        for name in args.methods.split(","):
            method, options = METHODS[name]
            for ids in rows:
                scheduler = Scheduler()
                task = scheduler.submit_coroutine(
                    answer_one(build(method, target, None, options)[0], Request(ids, args.tokens))
                )
                while scheduler.step():
                    pass
                r = task.result
                got.setdefault(name, []).append((len(r.token_ids), r.stats.passes))
                fed[name] = (
                    fed.get(name, 0) + task.usage[lm.checkpoint.lm.network].positions - len(ids) + 1
                )
                texts.setdefault(name, []).append(r.token_ids)
        first = next(iter(got))
        for name, pairs in got.items():
            passes = sum(p for _, p in pairs)
            out.append(
                {
                    "workload": workload,
                    "method": name,
                    "tokens per pass": per_pass(pairs),
                    f"over {first}": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(pairs, got[first])),
                    "positions per pass": fed[name] / passes,
                    "positions per token": fed[name] / sum(t for t, _ in pairs),
                    "identical": f"{sum(a == b for a, b in zip(texts[name], texts[first], strict=True))} of {len(rows)}",
                }
            )
    report(args, f"greedy, repetition penalty {args.penalty}; lookahead window/ngram/guesses", out)


if __name__ == "__main__":
    main()
