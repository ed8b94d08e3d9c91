"""Greedy texts of the compiled step beside llama.cpp's on the same file; where they part, by how much each prefers its token.

    python benchmarks/texts.py --model FILE.gguf [--compute float32] [--tokens 64] [--json]

Ten prompts, token ids by our tokenizer, which are compared with llama.cpp's. Two engines round differently, so texts may part
where two tokens are nearly as likely: the gap is the difference of their log-probabilities, in nats, in each engine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.core.types import ScoreRequest
from polydec.lab.bench.other_engines import EngineUnavailable, LlamaCpp
from polydec.models.native.library import COMPUTES
from polydec.models.native.network import CpuStep
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions.sources import open_source

PROMPTS = (
    "The old river ran past the mill, and",
    "In 1969, the first people to",
    "def fibonacci(n):\n",
    "Q: What is the capital of Australia?\nA:",
    "Dear Ms Okafor,\n\nThank you for",
    "Die Hauptstadt von Frankreich ist",
    "1, 1, 2, 3, 5, 8,",
    "Ingredients: flour, butter, sugar. First,",
    "El perro y el gato",
    "The three laws of motion are",
)
CONTEXT = 512


def ours(net: CpuStep, ids: list[int], count: int) -> tuple[list[int], list[Tensor]]:
    """Tokens, and the log-probabilities that each was the likeliest of."""
    cache, text, laws = net.new_cache(), list[int](), list[Tensor]()
    feed = ids
    while len(text) < count:
        first = cache.stage_slots(range(-1, len(feed) - 1))
        cache.commit_path(range(len(feed)))
        logits = net.forward(
            [NetworkQuery(cache, first, tuple(feed), (len(feed) - 1,), ScoreRequest())]
        )[0].logits_RV
        assert logits is not None
        laws.append(logits[0].log_softmax(-1))
        feed = [int(laws[-1].argmax())]
        text += feed
    return text, laws


def theirs(llama: LlamaCpp, ids: list[int], count: int) -> tuple[list[int], list[Tensor]]:
    llama.drop_entries(0)
    text, laws, feed, at = list[int](), list[Tensor](), ids, 0
    while len(text) < count:
        llama.feed_tokens([feed], at, 1)
        row = np.ctypeslib.as_array(
            llama._L.llama_get_logits_ith(llama._ctx, len(feed) - 1), (llama.size,)
        )
        laws.append(torch.tensor(row).log_softmax(-1))
        at += len(feed)
        feed = [int(laws[-1].argmax())]
        text += feed
    return text, laws


def tokenized(llama: LlamaCpp, text: str) -> list[int]:
    """By llama.cpp's own tokenizer."""
    L, data = llama._L, text.encode()
    room = (ctypes.c_int32 * (len(data) + 8))()
    n = L.llama_tokenize(
        L.llama_model_get_vocab(L.llama_get_model(llama._ctx)),
        data,
        len(data),
        room,
        len(room),
        True,
        True,
    )
    return list(room[:n])


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="zoo:smollm2", help="a GGUF file or zoo:NAME")
    p.add_argument("--compute", choices=COMPUTES, default="float32")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    if not 1 <= o.tokens <= CONTEXT // 2:
        p.error(f"--tokens is {o.tokens}: it must lie in 1 to {CONTEXT // 2}")
    source = open_source(o.model)
    net = CpuStep.build(source.config, source.weights, compute=o.compute)
    try:
        llama = LlamaCpp(source.path, CONTEXT, CONTEXT, torch.get_num_threads())
    except EngineUnavailable as e:
        raise SystemExit(f"no llama.cpp: {e}") from None
    found = list[dict[str, Any]]()
    for i, prompt in enumerate(PROMPTS):
        print(f"prompt {i + 1} of {len(PROMPTS)}", file=sys.stderr, flush=True)
        ids = list(source.text.encode(prompt))
        (a, laws_a), (b, laws_b) = ours(net, ids, o.tokens), theirs(llama, ids, o.tokens)
        same = next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), o.tokens)
        r: dict[str, Any] = {
            "prompt": prompt,
            "tokenized_alike": ids == tokenized(llama, prompt),
            "same": same,
        }
        if same < o.tokens:
            x, y = a[same], b[same]
            r |= {
                "ours": source.text.decode([x]),
                "llama.cpp": source.text.decode([y]),
                "gap_ours": round(float(laws_a[same][x] - laws_a[same][y]), 4),
                "gap_llama.cpp": round(float(laws_b[same][y] - laws_b[same][x]), 4),
            }
        found.append(r)
    if o.json:
        print(
            json.dumps(
                {"model": o.model, "kernel": net.kernel, "tokens": o.tokens, "prompts": found}
            )
        )
        return
    print(f"{o.model}, {net.kernel} beside llama.cpp, {o.tokens} tokens")
    for r in found:
        end = (
            "all alike"
            if r["same"] == o.tokens
            else (
                f"part at token {r['same'] + 1}: {r['ours']!r} by {r['gap_ours']}, "
                f"{r['llama.cpp']!r} by {r['gap_llama.cpp']}"
            )
        )
        print(f"{r['prompt']!r:50} {end}{'' if r['tokenized_alike'] else '; tokenized otherwise'}")


if __name__ == "__main__":
    main()
