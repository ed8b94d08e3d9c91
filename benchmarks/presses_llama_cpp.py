"""llama.cpp's caches of few bits on the same file and the same text as benchmarks/presses.py, over its own cache of float16.

    POLYDEC_DATA=TEXTS python benchmarks/presses_llama_cpp.py lab/reports/presses-llama-cpp.csv

Needs the package `cyllama`, whose wheel holds llama.cpp; it is no dependency of this project. Passes of 64 tokens, flash
attention for every cache, as caches of values in few bits need it. Figures are those of `polydec cache-cost`: bits of a number
are those of the type (a scale of 16 bits for each 32 numbers), and what is told is over llama.cpp's own cache of float16.
Counts and distances only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from csv_rows import write_csv
from presses import text

import polydec
from polydec.lab.bench.cache_cost import COMPARED, ROWS, SKIPPED

CACHES = {"f16": (1, 16.0), "q8_0": (8, 8.5), "q4_0": (2, 4.5)}
"""Types of ggml: their number, and the bits that a number takes."""
FLASH = 1
LENGTHS = (1000, 2000)


def open_context(model: Any, binding: Any, kind: int, slots: int) -> Any:
    params = binding.LlamaContextParams()
    params.n_ctx = slots
    params.n_batch = params.n_ubatch = ROWS
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = kind
    params.flash_attn_type = FLASH
    return binding.LlamaContext(model, params, verbose=False)


def read_text(
    binding: Any, context: Any, tokens: tuple[int, ...], size: int
) -> dict[int, tuple[float, torch.Tensor]]:
    """By length nats a token, and the last laws."""
    nats = list[float]()
    last = list[torch.Tensor]()
    out = dict[int, tuple[float, torch.Tensor]]()
    at = 0
    for length in LENGTHS:
        last.clear()
        while at < length:
            stop = min(length, at + ROWS)
            batch = binding.LlamaBatch(n_tokens=ROWS, embd=0, n_seq_max=1)
            for i in range(at, stop):
                batch.add(tokens[i], i, [0], True)
            context.decode(batch)
            for i in range(at, stop):
                logits = np.asarray(context.get_logits_ith(i - at), dtype=np.float32)[:size]
                logp_V = torch.from_numpy(logits).log_softmax(0)
                if i >= SKIPPED:
                    nats.append(-float(logp_V[tokens[i + 1]]))
                if i >= length - COMPARED:
                    last.append(logp_V)
            at = stop
        out[length] = sum(nats) / len(nats), torch.stack(last)
    return out


def main() -> None:
    try:
        from cyllama.llama import (  # pyright: ignore[reportMissingImports]     (it need not be installed)
            llama_cpp as binding,
        )
    except ImportError:
        raise SystemExit("the package cyllama is not installed") from None
    torch.set_num_threads(1)
    binding.disable_logging()
    lm = polydec.load("zoo:smollm2", dtype="float16", draft=None, ngrams=None, threads=1)
    tokens = lm.encode_prompt(text(max(LENGTHS)), raw=True)[: max(LENGTHS) + 1]
    size = lm.checkpoint.lm.vocab.size

    class SizedModel(binding.LlamaModel):
        """`get_logits_ith` of cyllama 0.2.18 asks its model for this number, which it does not have."""

        n_vocab = size

    model = SizedModel(path_model=os.fspath(lm.checkpoint.path))
    rows = list[dict[str, str]]()
    exact = dict[int, tuple[float, torch.Tensor]]()
    for name, (kind, bits) in CACHES.items():
        found = read_text(
            binding, open_context(model, binding, kind, max(LENGTHS) + ROWS), tokens, size
        )
        exact = exact or found
        for length, (nats, logp_NV) in found.items():
            base, exact_NV = exact[length]
            kl_N = (exact_NV.exp() * (exact_NV - logp_NV)).sum(-1)
            same_N = exact_NV.argmax(-1) == logp_NV.argmax(-1)
            perplexity = np.exp(nats if name == "f16" else nats - base)
            rows.append(
                {
                    "cache": name,
                    "length": str(length),
                    "bits": f"{bits:g}",
                    "share": f"{bits / 32:.3f}",
                    "perplexity": f"{perplexity:.4f}",
                    "kl": f"{max(0.0, float(kl_N.mean())):.1e}",
                    "same": f"{float(same_N.double().mean()):.3f}",
                }
            )
            print(list(rows[-1].values()), flush=True)
        write_csv(Path(sys.argv[1]), rows)


if __name__ == "__main__":
    main()
