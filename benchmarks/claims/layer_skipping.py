"""Unified Layer Skipping: the speed that was asked for against layers that run, and what it does to the text.

Perplexity: the prompt (--begin tokens) passes every layer, the next --tokens tokens of the document the kept ones only; mean
negative log-probability of these, with a paired 95 % bootstrap interval of the ratio to the whole model's perplexity. As a
draft: share of drafts of four that the whole model accepts, greedy, of the first --drafted prompts. With --time tokens per
second of the recipe, alone and as a draft. Nothing is tuned to the pattern here: the paper fine-tunes for it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from exits import counted, prompts
from seen import arguments, central_interval, drawn_again, model, report, shaped

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.bench.measure import BenchTask, MethodSetting, bench_table_rows, measure_methods
from polydec.lab.testing.kits import build
from polydec.laws.targets.skipping import SkippingTarget
from polydec.methods.economics.depth import kept_layers

SPEEDS = (1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0)


def surprise(target: Any, prompt: tuple[int, ...], text: tuple[int, ...]) -> float:
    """Mean -log p of a text after a prompt, in nats."""
    session = target.open_session(prompt)
    scores = run_coroutines(
        [session.score_draft(Draft.chain_draft(prompt[-1], text[:-1]), ScoreRequest())]
    )[0]
    return -sum(scores.token_logprobs(i, (x,))[0] for i, x in enumerate(text)) / len(text)


def main() -> None:
    parser = arguments(__doc__, prompts=24, tokens=64, begin=64, even=0, drafted=6, repeats=2)
    parser.add_argument("--time", action="store_true", help="tokens per second")
    args = parser.parse_args()
    lm, rows = model(args), list[dict[str, Any]]()
    L, texts, begin = lm.network.layers, [], args.begin
    args.begin += args.tokens
    for kind, ids in prompts(lm, args, args.tune):
        texts.append((kind, ids[:begin], ids[begin:]))
    whole = [surprise(lm.checkpoint.lm, p, t) for _, p, t in texts]
    count = counted(lm.network)
    for speed in SPEEDS:
        kept = kept_layers(L, speed, even=bool(args.even))
        some = [surprise(SkippingTarget(lm.checkpoint.lm, kept), p, t) for _, p, t in texts]
        d = np.array(some) - np.array(whole)
        given = {"speed": speed, "even": bool(args.even)}
        decoder, _ = build("unified-layer-skipping", shaped(lm, 0.0), given=given)
        before, n = count.positions, 33
        run_coroutines(
            [answer_one(decoder, Request(texts[0][1], max_tokens=n + 1, ignore_eos=True))]
        )
        per_token = (count.positions - before - L * begin) / n  # every layer sees the prompt
        drafter, _ = build(
            "unified-layer-skipping-draft", shaped(lm, 0.0), given={**given, "depth": 4}
        )
        asked = [
            Request(p, max_tokens=args.tokens // 2, ignore_eos=True)
            for _, p, _ in texts[: args.drafted]
        ]
        stats = [run_coroutines([answer_one(drafter, r)])[0].stats for r in asked]
        low, high = central_interval(drawn_again(d).mean(1))
        rows.append(
            {
                "asked": speed,
                "layers kept": f"{len(kept)} of {L}",
                "layers run a token": per_token,
                "speed by layers": L / per_token,
                "perplexity": math.exp(float(np.mean(some))),
                "over the whole model's": f"{math.exp(d.mean()):.3f} [{math.exp(low):.3f}, {math.exp(high):.3f}]",
                "accepted of drafts of four": sum(s.accepted for s in stats)
                / max(1, sum(s.drafted for s in stats)),
            }
        )
    if args.time:
        methods = [
            MethodSetting("plain", {}),
            *(
                MethodSetting(m, {"speed": str(s), "even": str(bool(args.even))})
                for s in SPEEDS[2:]
                for m in ("unified-layer-skipping", "unified-layer-skipping-draft")
            ),
        ]
        tasks = [BenchTask("documents", (p,), raw=True) for _, p, _ in texts]
        runs = measure_methods(
            lm,
            methods,
            tasks,
            sampling=lm.sampling_with(temperature=0.0),
            max_tokens=args.tokens,
            repeats=args.repeats,
        )
        rows += bench_table_rows(lm, runs, tasks)
    report(args, "published spacing" if not args.even else "even spacing", rows)


if __name__ == "__main__":
    main()
