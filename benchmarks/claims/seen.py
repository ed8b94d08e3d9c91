"""What the claims about drafts from text already seen share: prompts, runs, paired intervals, the head of a report."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polydec import load
from polydec.api import LoadedModel
from polydec.core.decoder import answer_one
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.laws.shapers.sampling import build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.loop.protocols import Drafter, Verifier
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.request import machine

sys.path.append(str(Path(__file__).parents[1]))  # for what other claims read of `studies`
from bootstrap import DRAWS, central_interval, drawn_again

DATA = Path(os.environ.get("POLYDEC_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def arguments(doc: str, **defaults: Any) -> argparse.ArgumentParser:
    """--model, --dtype, --threads, --prompts, --tokens, --seed, --tune and --json; `defaults` replace theirs."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {
        "model": "zoo:smollm2",
        "dtype": "native",
        "threads": 1,
        "prompts": 20,
        "tokens": 64,
        "seed": 0,
    } | defaults
    for name, value in known.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument(
        "--tune", action="store_true", help="the prompts for tuning instead of those for measuring"
    )
    parser.add_argument("--json", action="store_true")
    return parser


def lines(name: str) -> Iterable[dict[str, Any]]:
    """The rows of a JSON-lines file of the data folder. Raises SystemExit where it is not there."""
    path = DATA / name
    if not path.exists():
        raise SystemExit(f"no data at {path}: set POLYDEC_DATA")
    text = (
        gzip.decompress(path.read_bytes()).decode()
        if path.suffix == ".gz"
        else path.read_text("utf-8")
    )
    return map(json.loads, text.strip().split("\n"))


def part(texts: Iterable[Any], n: int, tune: bool, key: Callable[[Any], str] = str) -> list[Any]:
    """The first n whose SHA-1 modulo 10 is at least 7 (those for measuring), or less (those for tuning)."""
    mine = [
        t for t in texts if (int(hashlib.sha1(key(t).encode()).hexdigest(), 16) % 10 < 7) == tune
    ]
    return mine[:n]


def model(
    args: argparse.Namespace, draft: str | None = None, trained: Sequence[str] = ()
) -> LoadedModel:
    torch.set_num_threads(args.threads)
    return load(args.model, dtype=args.dtype, threads=args.threads, draft=draft, trained=trained)


def shaped(
    lm: LoadedModel,
    temperature: float,
    seed: int = 0,
    choice: int = 0,
    *,
    of_draft: bool = False,
    repetition_penalty: float = 1.0,
) -> Target:
    """The model's law at this temperature, nothing else bent."""
    checkpoint = lm.draft if of_draft else lm.checkpoint
    assert checkpoint is not None
    sampling = lm.sampling_with(
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
    )
    shapers = build_shapers(
        sampling,
        order="vllm",
        eos=checkpoint.lm.vocab.eos,
        stop_ids=frozenset(),
        seed=seed,
        choice=choice,
    )
    return ShapedTarget(checkpoint.lm, *shapers)


def decode(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int],
    args: argparse.Namespace,
    *,
    depth: int = 64,
    nodes: int = 64,
    choice: int = 0,
    seed: int | None = None,
) -> Any:
    """The result of one request, of the seed of args where none is given."""
    seed = args.seed if seed is None else seed
    request = Request(tuple(prompt), max_tokens=args.tokens, seed=seed, choice=choice)
    return run_coroutines(
        [
            answer_one(
                SpeculativeDecoder(target, drafter, verifier, FixedPolicy(depth, nodes)), request
            )
        ]
    )[0]


Pair = tuple[int, int]
"""Tokens and passes of one prompt."""


def per_pass(pairs: Sequence[Pair]) -> float:
    return sum(t for t, _ in pairs) / sum(p for _, p in pairs)


def interval(
    ours: Sequence[Pair], theirs: Sequence[Pair], draws: int = DRAWS
) -> tuple[float, float, float]:
    """The ratio of tokens per pass, and its 95 % bootstrap interval over prompts."""
    rows = np.array([(*a, *b) for a, b in zip(ours, theirs, strict=True)], dtype=float)
    t1, p1, t0, p0 = np.moveaxis(drawn_again(rows, draws).sum(1), -1, 0)
    return per_pass(ours) / per_pass(theirs), *central_interval((t1 / p1) / (t0 / p0))


def report(args: argparse.Namespace, what: str, rows: Sequence[dict[str, Any]]) -> None:
    """Machine, model, prompts and seed, then one line a row; with --json one object."""
    head = {
        "machine": machine.describe_machine(),
        "model": args.model,
        "dtype": args.dtype,
        "what": what,
        "prompts": args.prompts,
        "split": "tuning" if args.tune else "measuring where there is a choice",
        "tokens": args.tokens,
        "seed": args.seed,
    }
    if args.json:
        print(json.dumps({**head, "rows": list(rows)}))
        return
    print("; ".join(f"{k}: {v}" for k, v in head.items()))
    for row in rows:
        print(
            "  ".join(
                f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )
