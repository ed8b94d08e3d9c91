"""Text repair by an encoder-decoder model: tokens a pass, equal texts and seconds of each method beside plain decoding.

    python benchmarks/studies/repair.py MODEL PAIRS.jsonl [--drafter DIR] [--count 100] [--rounds 3]

PAIRS is what benchmarks/repair_pairs.py made, or JSON lines with `source` and `target`. Only held-out pairs are decoded.
`right` is the share of texts that equal the target. Milliseconds are of one
text at a time: of each the least of `rounds` tries, in which the methods take turns.
"""

from __future__ import annotations

import argparse
import platform
import time
from itertools import islice
from pathlib import Path

import torch

from polydec import Engine, load
from polydec.lab.train import pairs
from polydec.lab.train.data import held_out

METHODS = {
    "plain": ("plain", {}),
    "IAD, as published": ("aggressive-decoding", {"near": False, "eager": True, "block": 64, "cost_aware": False}),
    "IAD, near, cost-aware": ("aggressive-decoding", {"eager": True, "block": 64}),
    "GAD": ("generalised-aggressive-decoding", {}),
    "GAD++ (top 5, 3 nats)": ("relaxed-aggressive-decoding", {}),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("--drafter")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    lm = load(args.model, draft=None, trained=(args.drafter,) if args.drafter else (), threads=1)
    held = (p for p in pairs.read_text_pairs(Path(args.pairs)) if held_out(p.source))
    some = list(islice(held, args.count))
    names = [n for n in METHODS if args.drafter or not n.startswith("GAD")]
    texts: dict[str, list[str]] = {n: [] for n in names}
    seconds, passes, tokens = (dict.fromkeys(names, 0.0) for _ in range(3))
    engine = Engine(lm)
    for pair in some:
        best = {n: float("inf") for n in names}
        for turn in range(args.rounds):
            for n in names:
                method, options = METHODS[n]
                began = time.perf_counter()
                asked = engine.submit(pair.source, method=method, options=options, max_tokens=96)
                answer = engine.run([asked])[0]
                choice = answer.choices[0]
                best[n] = min(best[n], time.perf_counter() - began)
                if not turn:
                    texts[n].append(choice.text)
                    passes[n] += answer.metrics["target_passes"]
                    tokens[n] += len(choice.token_ids)
        for n in names:
            seconds[n] += best[n]
    print(
        f"{platform.processor() or platform.machine()}, 1 thread of torch {torch.__version__}; {len(some)} held-out texts"
    )
    print(
        f"{'method':24} {'tokens/pass':>11} {'ms/text':>8} {'speed':>6} {'equal':>6} {'right':>6}"
    )
    for n in names:
        equal = sum(a == b for a, b in zip(texts[n], texts["plain"])) / len(some)
        right = sum(a == p.target for a, p in zip(texts[n], some)) / len(some)
        print(
            f"{n:24} {tokens[n] / passes[n]:11.2f} {1e3 * seconds[n] / len(some):8.1f} "
            f"{seconds['plain'] / seconds[n]:6.2f} {equal:6.1%} {right:6.1%}"
        )


if __name__ == "__main__":
    main()
