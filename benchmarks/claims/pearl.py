"""PEARL against the same pair one after the other: tokens per round, and what overlapping would give, simulated.

Per prompt: PEARL with gamma tokens a round, and draft-model with depth gamma. `run`: mean accepted run of tokens. Round times
are measured pass by pass on this machine, both models with --threads threads; `simulated` is what the rounds would take were
draft and target on devices of their own (the longer of the two instead of their sum), over draft-model's measured time: no
overlap is measured by that. --time loads the pair with two workers, each on half of the threads, and measures an engine: PEARL
against the pair one after the other with all threads, prompts in turns, and compares the texts.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from seen import arguments, lines, part, report
from studies.overlap import Timed, overlapped

from polydec import api
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler
from polydec.lab.testing.kits import build
from polydec.laws.shapers.sampling import build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.models.sessions.lm import CausalLaw


def pair(
    args: argparse.Namespace, threads: int, log: list[Any] | None = None
) -> tuple[api.LoadedModel, Any, Any]:
    """The loaded models, and both laws; with a log their passes are noted in it."""
    lm = api.load(args.model, dtype=args.dtype, threads=threads)
    if lm.draft is None:
        raise SystemExit(f"{args.model} has no draft model")
    shapers = build_shapers(lm.sampling_with(temperature=args.temperature), seed=args.seed)
    laws = []
    for name, c in (("target", lm.checkpoint), ("draft", lm.draft)):
        network = c.lm.network if log is None else Timed(c.lm.network, name, log)
        laws.append(ShapedTarget(CausalLaw(network, c.lm.vocab), *shapers))
    return lm, *laws


def decode(
    method: str,
    options: dict[str, Any],
    target: Any,
    draft: Any,
    ids: Any,
    args: argparse.Namespace,
) -> tuple[Any, float]:
    scheduler, start = Scheduler(), time.perf_counter()
    task = scheduler.submit_coroutine(
        answer_one(
            build(method, target, draft, options)[0],
            Request(ids, args.tokens, seed=args.seed, ignore_eos=True),
        )
    )
    while scheduler.step():
        pass
    if task.error is not None:
        raise task.error
    return task.result, time.perf_counter() - start


def answered(
    lm: api.LoadedModel, method: str, options: dict[str, Any], ids: Any, args: argparse.Namespace
) -> tuple[tuple[int, ...], float]:
    """The ids of an engine's answer, and its seconds."""
    start = time.perf_counter()
    made = api.generate(
        lm,
        ids,
        method=method,
        options=options,
        max_tokens=args.tokens,
        seed=args.seed,
        ignore_eos=True,
        sampling=lm.sampling_with(temperature=args.temperature),
    )
    return made.token_ids, time.perf_counter() - start


def ratio(ours: Any, theirs: Any) -> str:
    """Sums over sums, with the paired 95 % bootstrap interval."""
    a, b = np.array(ours, float), np.array(theirs, float)
    at = np.random.default_rng(0).integers(0, len(a), (2000, len(a)))
    low, high = np.quantile(a[at].sum(1) / b[at].sum(1), (0.025, 0.975))
    return f"{a.sum() / b.sum():.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = arguments(__doc__, model="zoo:tiny", dtype="auto", prompts=20, tokens=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--gammas", default="2,3,4,6")
    parser.add_argument(
        "--time",
        action="store_true",
        help="measure two workers, on a quiet machine of two cores",
    )
    args = parser.parse_args()
    log: list[tuple[str, int, float]] = []
    lm, target, draft = pair(args, args.threads, log)
    turns = part(
        (r["turns"][0] for r in lines("spec_bench/question.jsonl") if len(r["turns"][0]) < 1200),
        10**6,
        args.tune,
    )
    prompts = [
        lm.encode_prompt(t) for t in turns[:: max(1, len(turns) // args.prompts)][: args.prompts]
    ]
    out = []
    for gamma in map(int, args.gammas.split(",")):
        both: dict[str, list[Any]] = {"pearl": [], "draft-model": []}
        for ids in prompts:
            for method, options in (("pearl", {"gamma": gamma}), ("draft-model", {"depth": gamma})):
                log.clear()
                r, _ = decode(method, options, target, draft, ids, args)
                passes = log[next(i for i, (name, m, _) in enumerate(log) if name == "target") :]
                both[method].append(
                    (
                        len(r.token_ids),
                        r.stats.passes,
                        r.stats.accepted,
                        *overlapped(passes, "target"),
                    )
                )
        p, d = (np.array(both[m]) for m in ("pearl", "draft-model"))
        out.append(
            {
                "gamma": gamma,
                "tokens per round": p[:, 0].sum() / p[:, 1].sum(),
                "of draft-model": d[:, 0].sum() / d[:, 1].sum(),
                "run": p[:, 2].sum() / np.maximum(p[:, 0] - p[:, 2], 1).sum(),
                "run of draft-model": d[:, 2].sum() / d[:, 1].sum(),
                "one after the other, draft-model / pearl": ratio(d[:, 3], p[:, 3]),
                "simulated overlap, draft-model / pearl": ratio(d[:, 3], p[:, 4]),
            }
        )
    if args.time:
        whole, halves = (api.load(args.model, dtype=args.dtype, workers=n) for n in (1, 2))
        for gamma in map(int, args.gammas.split(",")):
            seconds: dict[str, list[float]] = {"pearl": [], "draft-model": []}
            same = 0
            for ids in prompts:
                _, s = answered(whole, "draft-model", {"depth": gamma}, ids, args)
                overlap, o = answered(halves, "pearl", {"gamma": gamma}, ids, args)
                alone, _ = answered(whole, "pearl", {"gamma": gamma}, ids, args)
                same += alone == overlap
                seconds["pearl"].append(o)
                seconds["draft-model"].append(s)
            out.append(
                {
                    "gamma": gamma,
                    "measured, draft-model on all threads / pearl on two workers": ratio(
                        seconds["draft-model"], seconds["pearl"]
                    ),
                    "same text as with one worker": f"{same} of {len(prompts)}",
                }
            )
    report(
        args,
        f"temperature {args.temperature}; overlap simulated from the pass times of {args.threads} thread(s)",
        out,
    )


if __name__ == "__main__":
    main()
