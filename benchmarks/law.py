"""How far the laws of faster arithmetic lie from fp32's: KL divergence, changes of the likeliest token, perplexity.

    python benchmarks/law.py --text TEXT [--model FILE.gguf] [--tokens 2000]

The compiled step in float32 over the file's own numbers is the reference; beside it int16, int8, the cache's other dtypes where
there are any, llama.cpp on the same file (where its binding is installed) and, with --quantize, a float checkpoint's matrices
stored in blocks. Contexts of 500 tokens, every token's law counts. KL is from the reference's law to the other's, in nats.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.core.types import ScoreRequest
from polydec.lab.bench.other_engines import EngineUnavailable, LlamaCpp
from polydec.models.native.library import CACHES
from polydec.models.native.network import CpuStep
from polydec.models.native.weights import QUANTISED
from polydec.models.nets.linear import cpu_name
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions.sources import open_source

CONTEXT = 500
ROWS = 50
Law = Callable[[list[int]], Tensor]  # logits of every token of a text


def logits(net: CpuStep, ids: list[int]) -> Tensor:
    cache = net.new_cache()
    cache.stage_slots(range(-1, len(ids) - 1))
    return net.forward([NetworkQuery(cache, 0, tuple(ids), range(len(ids)), ScoreRequest())])[
        0
    ].logits_RV


def read(path: Path) -> str:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as f:
        return f.read()


def distance(parts: list[list[int]], truth: Law, other: Law) -> dict[str, float]:
    """Over all parts; the logits of one at a time, and in float64 of few rows: a large vocabulary takes gigabytes."""
    divergence, changed, cost, cost_truth = list[Tensor](), 0, 0.0, 0.0
    for ids in parts:
        one, two = truth(ids), other(ids)
        for i in range(0, len(ids), ROWS):
            p, q = (law[i : i + ROWS].double().log_softmax(-1) for law in (one, two))
            term = (p.exp() * (p - q)).nan_to_num(
                0.0
            )  # a token that a draft lacks has weight 0 in both
            divergence.append(term.sum(-1).clamp(min=0))
            changed += int((p.argmax(-1) != q.argmax(-1)).sum())
            next_ids = ids[i + 1 : i + 1 + len(p)]
            at = torch.arange(len(next_ids)), torch.tensor(next_ids, dtype=torch.long)
            cost, cost_truth = cost - float(q[at].sum()), cost_truth - float(p[at].sum())
    kl, n = torch.cat(divergence), sum(len(ids) - 1 for ids in parts)
    return {
        "mean_kl": float(kl.mean()),
        "median_kl": float(kl.median()),
        "p99_kl": float(kl.quantile(0.99)),
        "argmax_changed": changed,
        "tokens": len(kl),
        "perplexity": float(np.exp(cost / n)),
        "perplexity_ratio": float(np.exp((cost - cost_truth) / n)),
    }


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="zoo:smollm2", help="a GGUF file, a directory or zoo:NAME")
    p.add_argument("--text", type=Path, required=True, help="a text, plain or gzip")
    p.add_argument("--tokens", type=int, default=2000)
    p.add_argument(
        "--quantize",
        nargs="*",
        choices=[*QUANTISED],
        default=[],
        help="of a float checkpoint, in float32",
    )
    p.add_argument(
        "--only", nargs="+", help="names of the sides that are compared, as the table has them"
    )
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    if o.tokens < 2:
        p.error("--tokens must be at least 2")
    if not o.text.is_file():
        p.error(f"--text is {str(o.text)!r}: there is no such file")
    source = open_source(o.model)
    ids = list(source.text.encode(read(o.text)[: 20 * o.tokens]))[: o.tokens]
    parts = [ids[i : i + CONTEXT] for i in range(0, len(ids), CONTEXT)]

    def net(weights: Mapping[str, Any] = source.weights, **how: Any) -> Law:
        built = CpuStep.build(source.config, weights, **how)
        return lambda ids: logits(built, ids)

    sides: dict[str, Callable[[], Law]] = {
        "int16": lambda: net(compute="int16"),
        "int8": lambda: net(compute="int8"),
        **{f"{k} cache": lambda k=k: net(cache_dtype=k) for k in CACHES if k != "float32"},
        **{f"quantize {k}": lambda k=k: net(quantize=k) for k in o.quantize},
    }
    try:
        llama = LlamaCpp(source.path, CONTEXT + 64, CONTEXT, torch.get_num_threads())

        def cpp(ids: list[int]) -> Tensor:
            llama.drop_entries(0)
            llama.feed_tokens([ids], 0, len(ids))
            row = llama._L.llama_get_logits_ith
            return torch.tensor(
                np.array(
                    [
                        np.ctypeslib.as_array(row(llama._ctx, i), (llama.size,))
                        for i in range(len(ids))
                    ]
                )
            )

        sides["llama.cpp"] = lambda: cpp
    except EngineUnavailable as e:
        print(f"no llama.cpp: {e}", file=sys.stderr)
    if o.only:
        if missing := [name for name in o.only if name not in sides]:
            p.error(f"--only names {missing[0]!r}: here are {', '.join(sides)}")
        sides = {name: sides[name] for name in o.only}
    truth, found = net(), dict[str, Any]()
    known = {tuple(ids): truth(ids) for ids in parts}
    for name, side in sides.items():
        found[name] = d = distance(parts, lambda ids: known[tuple(ids)], side())
        if not o.json:
            print(
                f"{name:16} mean KL {d['mean_kl']:.2e}  median {d['median_kl']:.2e}  99 % {d['p99_kl']:.2e}  argmax changed "
                f"{d['argmax_changed']} of {d['tokens']}  perplexity {d['perplexity']:.4f} (x {d['perplexity_ratio']:.5f})",
                flush=True,
            )
    if o.json:
        print(json.dumps({"cpu": cpu_name(), "model": o.model, "text": o.text.name, **found}))


if __name__ == "__main__":
    main()
