"""Near-ties against faults in small number types: does `verify` tell them apart?

    POLYDEC_DATA=… python benchmarks/near_ties.py --dtype bfloat16 --out lab/reports/near-ties.csv

Prompts of Spec-Bench, cut to `--words` words, are decoded greedily by methods whose passes have other shapes than those of
plain decoding, in torch in that number type. As nothing is wrong, a difference must be a near-tie. Then a known fault is put
into the verifier, and a text that it changes should be a fault. One row a method and fault.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from polydec import load
from polydec.lab.bench.certify import compare_greedy_texts
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.nets import linear, transformer
from polydec.request import profile

ALWAYS = {"cost_aware": False}
"""Draft whatever passes cost here: where nothing is drafted, no pass has another shape."""
METHODS = ("prompt-lookup", "token-recycling")
FIELDS = (
    "model",
    "dtype",
    "method",
    "fault",
    "prompts",
    "tokens",
    "equal",
    "near_ties",
    "faults",
    "largest_tie",
    "smallest_fault",
)


def texts(count: int, words: int) -> list[str]:
    """The beginnings of the first turns, evenly over the workloads."""
    path = Path(os.environ["POLYDEC_DATA"]) / "spec_bench" / "question.jsonl"
    turns = [json.loads(line)["turns"][0] for line in path.read_text("utf-8").splitlines()]
    return [
        " ".join(turn.split()[:words]) for turn in turns[:: max(1, len(turns) // count)][:count]
    ]


@contextmanager
def broken(every):
    """Every so many passes with a draft the first drafted token is accepted whatever the model says (0: never)."""
    verify, passes = MatchVerifier.verify_draft, [0]

    def wrong(self, draft, scores, rng, position):
        passes[0] += len(draft) > 1
        if len(draft) == 1 or not every or passes[0] % every:
            return verify(self, draft, scores, rng, position)
        return Verdict((1,), scores.likeliest_token(1))

    MatchVerifier.verify_draft = wrong
    try:
        yield
    finally:
        MatchVerifier.verify_draft = verify


def measure(lm, prompts, method, most):
    """How many texts are equal, near-ties and faults; tokens; the largest gap of a tie, the smallest of a fault."""
    counts, tokens, gaps = {"equal": 0, "near-tie": 0, "fault": 0}, 0, {"near-tie": [], "fault": []}
    for prompt in prompts:
        found = compare_greedy_texts(
            lm, prompt, method, ALWAYS, sampling=lm.sampling_with(), max_tokens=most, raw=True
        )
        counts[found.verdict] += 1
        tokens += found.tokens
        if found.gap is not None:
            gaps[found.verdict].append(found.gap)
    return counts, tokens, max(gaps["near-tie"], default=None), min(gaps["fault"], default=None)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--model", default="zoo:tiny")
    ask.add_argument("--dtype", default="bfloat16")
    ask.add_argument("--prompts", type=int, default=60)
    ask.add_argument("--words", type=int, default=24)
    ask.add_argument("--tokens", type=int, default=32)
    ask.add_argument("--methods", nargs="*", default=METHODS)
    ask.add_argument("--out", type=Path)
    ask.add_argument(
        "--emulate",
        action="store_true",
        help="torch's own arithmetic, where this CPU has none of that type",
    )
    asked = ask.parse_args()
    torch.set_num_threads(1)
    profile.QUICK = 0.05  # no text depends on what passes cost
    if asked.emulate:
        transformer.cpu_kernel = lambda dtype, shapes: linear.cuda_kernel(dtype)
    lm, prompts = load(asked.model, dtype=asked.dtype), texts(asked.prompts, asked.words)
    new = asked.out is not None and not asked.out.exists()
    out = csv.writer(
        sys.stdout if asked.out is None else asked.out.open("a", buffering=1),
        lineterminator="\n",
    )
    if new or asked.out is None:
        out.writerow(FIELDS)
    for method in asked.methods:
        for every in (0, 5):
            with broken(every):
                counts, tokens, tie, fault = measure(lm, prompts, method, asked.tokens)
            name = f"a draft in {every} accepted unseen" if every else "none"
            gaps = ("" if g is None else f"{g:.3f}" for g in (tie, fault))
            out.writerow(
                (
                    asked.model,
                    asked.dtype,
                    method,
                    name,
                    len(prompts),
                    tokens,
                    *counts.values(),
                    *gaps,
                )
            )
            if asked.out is not None:
                print(method, name, counts, flush=True)


if __name__ == "__main__":
    main()
