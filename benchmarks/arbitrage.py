"""Steps of a small reasoner and of a large one: accuracy against the share that the large one writes.

    python benchmarks/arbitrage.py --draft DIR [--router DIR] [--reads DIR ...] [--model zoo:reasoner]
        [--reward zoo:reasoner-prm] [--only WORD ...] [--problems 40] [--seed 78] [--csv FILE]

--router is one of `train router`, --reads some of `train text-router`; --only takes the ways whose names hold one of these
words.

Held-out problems (train/problems.py: SHA-1 of the question), as many of each kind; an answer counts where the checker accepts
every step. "random" gives the large model as many steps as it is told to, whatever they are: what a rule has to beat. All see
the same problems; intervals are of a bootstrap over them (95 %). Tokens of the target are those that it writes, the ones that
are only judged included; it reads the others. Seconds are CPU seconds of the process.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from csv_rows import write_csv

from polydec.core.decoder import Decoder, answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.drafters.nothing import Nothing
from polydec.families.ar.speculative import Speculative
from polydec.families.search.arbiters import ByAdvantage, ByChance, ByReading, ByRouter, ByValue
from polydec.families.search.arbitrage import Arbitrage, Reader
from polydec.formats import zoo
from polydec.learned.kinds import router, step_reward, text_router
from polydec.models import checkpoint
from polydec.policies.fixed import Fixed
from polydec.shapers.sampling import Sampling, build_shapers
from polydec.targets.shaped import Shaped
from polydec.train.problems import KINDS, make, solved
from polydec.train.solutions import LONGEST
from polydec.verifiers.match import Match

Asked = Sequence[tuple[Any, tuple[int, ...]]]
"""Problems, and their prompts."""


def ways(
    big: Speculative,
    small: Speculative,
    learned: router.Router | None,
    reading: Sequence[text_router.TextRouter],
    reward: step_reward.StepReward,
) -> dict[str, Decoder]:
    """By name, in the order of the table."""

    def routed(arbiter: Any) -> Arbitrage:
        return Arbitrage(big, small, arbiter)

    def told(reads: text_router.TextRouter, tau: float) -> Arbitrage:
        law = Speculative(reads.law, Nothing(), Match(), Fixed(0))
        reader = Reader(law, *reads.marks, reads.law.context)
        return Arbitrage(big, small, ByReading(reads, tau), reader=reader)

    return {
        "target": big,
        "draft": small,
        **{
            f"router {t}": routed(ByRouter(learned, t))
            for t in (0.1, 0.2, 0.3, 0.4, 0.5)
            if learned is not None
        },
        **{
            f"reading {number}, {t}": told(reads, t)
            for number, reads in enumerate(reading)
            for t in (0.3, 0.5, 0.7)
        },
        **{f"reward-guided {t}": routed(ByValue(reward, t)) for t in (0.1, 0.3, 0.5, 0.7, 0.9)},
        "oracle": routed(ByAdvantage(reward)),
        **{f"random {s}": routed(ByChance(s)) for s in (0.2, 0.4, 0.6, 0.8)},
    }


def measure(name: str, decoder: Decoder, asked: Asked, text: Any) -> dict[str, Any]:
    began = time.process_time()
    results = run(
        [
            answer_one(decoder, Request(ids, max_tokens=LONGEST, seed=i))
            for i, (_, ids) in enumerate(asked)
        ]
    )
    seconds = time.process_time() - began
    said = [text.decode([x for x in r.token_ids if x not in decoder.vocab.eos]) for r in results]
    right = np.array([solved(p, s) for (p, _), s in zip(asked, said, strict=True)], float)
    again = np.random.default_rng(0).choice(right, (2000, len(right))).mean(1)
    low, high = np.quantile(again, (0.025, 0.975))
    sums = {
        k: sum(r.stats.metrics().get(k, 0) for r in results)
        for k in ("steps", "steps_of_target", "tokens_of_target", "tokens_drafted", "tokens_kept")
    }
    tokens = sum(len(r.token_ids) for r in results)
    alone = {"target": (1.0, tokens), "draft": (0.0, 0)}
    share, own = alone.get(
        name, (sums["steps_of_target"] / max(1, sums["steps"]), sums["tokens_of_target"])
    )
    return {
        "way": name,
        "accuracy": round(100 * right.mean(), 1),
        "interval": f"{100 * low:.1f} to {100 * high:.1f}",
        **{
            k: round(
                100
                * float(
                    np.mean([r for r, (p, _) in zip(right, asked, strict=True) if p.kind == k])
                ),
                1,
            )
            for k in KINDS
        },
        "share of target": round(share, 3),
        "target tokens": round(own / len(asked), 1),
        "drafted, dropped": round((sums["tokens_drafted"] - sums["tokens_kept"]) / len(asked), 1),
        "CPU seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("model", "zoo:reasoner"),
        ("draft", None),
        ("reward", "zoo:reasoner-prm"),
    ):
        parser.add_argument(f"--{name}", default=default, required=default is None)
    parser.add_argument("--router")
    parser.add_argument("--reads", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--seed", type=int, default=78)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--csv")
    args = parser.parse_args()
    target, draft = checkpoint.load(args.model), checkpoint.load(args.draft)
    reward = step_reward.load(
        zoo.resolve(args.reward) if args.reward.startswith("zoo:") else args.reward
    )
    shapers = build_shapers(Sampling(temperature=args.temperature), eos=target.lm.vocab.eos)
    big, small = (
        Speculative(Shaped(p.lm, *shapers), Nothing(), Match(), Fixed(0)) for p in (target, draft)
    )
    problems = [make(kind, args.seed, i, True) for i in range(args.problems) for kind in KINDS]
    asked = [(p, target.text.chat([{"role": "user", "content": p.question}])) for p in problems]
    lines = list[dict[str, Any]]()
    learned = None if args.router is None else router.load(args.router)
    reading = [text_router.load(name) for name in args.reads]
    for name, decoder in ways(big, small, learned, reading, reward).items():
        if not any(word in name for word in args.only):
            continue
        lines.append(measure(name, decoder, asked, target.text))
        print(*lines[-1].values(), sep=" | ", flush=True)
    if args.csv:
        write_csv(args.csv, lines)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
