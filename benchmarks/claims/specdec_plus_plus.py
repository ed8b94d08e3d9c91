"""SpecDec++ against every fixed length from 1 to 10, at T = 1: tokens per pass, drafted tokens that were thrown away, and
passes of target and draft per token at a ratio of their prices. With --time seconds instead, settings side by side.

The head is trained first, on what the target writes to prompts for tuning (--head: a directory that has one); the threshold
is the one that is cheapest on such prompts at each price. Prices are per position of the draft, the target's pass being 1.
"""
from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from drafted import Run, Setting, answer, answers, questions
from seen import arguments, interval, model, report

from polydec.drafters.model import FromModel
from polydec.models import stop_head
from polydec.policies.confidence import Confidence
from polydec.policies.fixed import Fixed
from polydec.train.stop_head import StopHeadSpec, train_stop_head
from polydec.trees.chain import Chain
from polydec.trees.learned_stop import LearnedStop
from polydec.verifiers.exact import Exact

PRICES = (0.02, 0.05, 0.1, 0.2)
THRESHOLDS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


def price(runs: list[Run], c: float) -> float:
    all_ = sum(runs[1:], runs[0])
    return (all_.passes + c * all_.draft_passes) / all_.tokens


def cheaper(ours: list[Run], theirs: list[Run], c: float) -> str:
    """Tokens per price, over theirs, with the paired interval."""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(*([(r.tokens, r.passes + c * r.draft_passes) for r in runs]
                                                        for runs in (ours, theirs))))


def fixed(k: int) -> Setting:
    return lambda d: FromModel(d, Chain()), Exact(), Fixed(k)


def timed(lm, settings, prompts, args) -> list[dict]:
    """Seconds per token of each setting, interleaved."""
    spent, got = dict.fromkeys(settings, 0.0), {name: list[Run]() for name in settings}
    seconds: dict[str, list[tuple[int, float]]] = {name: [] for name in settings}
    for prompt in prompts:
        for name, setting in settings.items():
            start = time.perf_counter()
            run = answer(lm, setting, prompt, args, 1.0)
            spent[name] += time.perf_counter() - start
            seconds[name].append((run.tokens, time.perf_counter() - start))
            got[name].append(run)
    lengths = [n for n in settings if n.startswith("fixed")]
    best = max(lengths, key=lambda n: sum(t for t, _ in seconds[n]) / spent[n])
    return [{"method": n, "tokens/s": sum(t for t, _ in seconds[n]) / spent[n],
             "over best fixed": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(seconds[n], seconds[best]))} for n in settings]


def main() -> None:
    parser = arguments(__doc__, model="zoo:tiny", dtype="auto", prompts=32, tokens=96, tuning=10, each=20, head="")
    parser.add_argument("--time", action="store_true")
    args = parser.parse_args()
    lm = model(args, "default")
    with TemporaryDirectory() as folder:
        trained = None
        if not args.head:
            trained = train_stop_head(StopHeadSpec(folder, target=args.model, each=args.each, max_tokens=96, seed=args.seed))
        head = stop_head.load(Path(args.head or folder))
    learned = {f"specdec++, threshold {h}": (lambda d, h=h: FromModel(d, LearnedStop(head, h)), Exact(), Fixed(12))
               for h in THRESHOLDS}
    lengths = {f"fixed {k}": fixed(k) for k in range(1, 11)}
    sure = {f"confidence {t}": (lambda d: FromModel(d, Chain()), Exact(), Confidence(t, 12)) for t in (0.05, 0.1, 0.2, 0.4)}
    tuned = answers(lm, {**learned, **sure}, questions(lm, args, tune=True)[:args.tuning], args, 1.0)
    if args.time:
        by = {n: price(tuned[n], 0.1) for n in tuned}
        some = {**lengths, **{n: s for group in (learned, sure) for n, s in group.items() if n == min(group, key=by.get)}}
        report(args, "seconds, T = 1", timed(lm, some, questions(lm, args), args))
        return
    got = answers(lm, {**lengths, **learned, **sure}, questions(lm, args), args, 1.0)
    out = [{"head": "held out", **trained["held_out"]}] if trained else []
    for name, runs in got.items():
        all_ = sum(runs[1:], runs[0])
        out.append({"method": name, "tokens per pass": all_.tokens / all_.passes,
                    "drafted per pass": all_.drafted / all_.passes,
                    "thrown away per token": (all_.drafted + all_.passes - all_.tokens) / all_.tokens,
                    **{f"price at {c}": price(runs, c) for c in PRICES}})
    for c in PRICES:
        best = min(lengths, key=lambda n: price(got[n], c))
        for group in (learned, sure):
            mine = min(group, key=lambda n: price(tuned[n], c))
            out.append({"price": c, "chosen": mine, "over every fixed length": " ".join(
                f"{k}:{price(got[f'fixed {k}'], c) / price(got[mine], c):.2f}" for k in range(1, 11)),
                "best fixed": best, "over it": cheaper(got[mine], got[best], c)})
    report(args, "T = 1", out)


if __name__ == "__main__":
    main()
