"""What a smaller cache costs: bytes, perplexity and the distance of laws, for every press, at 1,000 and 2,000 tokens.

    POLYDEC_DATA=TEXTS python benchmarks/presses.py lab/reports/presses.csv

One text is read by zoo:smollm2 on the torch path, 128 rows a pass, under each press and with the cache as it is.
Counts and distances only: nothing here is a time. A row is written as soon as it is known, and one that is there is not
measured again.

- bits: of a packed number of a key or value, scales, offsets, outliers, factors and what was let go counted in; 32 is the cache
- bytes: of the whole cache at that context, the exact tail and room to grow counted in, over those of as many float32 entries
- perplexity: of tokens 256 and further, over that with the cache as it is
- kl: of the law with the cache as it is from the pressed one, nats a token, over the last 256 tokens; same: the share of these
  whose likeliest token is the same
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import polydec
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.registry import press

DATA = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
CONTEXTS = (1000, 2000)
FIRST, LAST, ROWS = 256, 256, 128
COLUMNS = ("press", "options", "context", "bits", "bytes", "perplexity", "kl", "same")
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("quantised", {"bits": 8}),
    ("quantised", {"bits": 4}),
    ("quantised", {"bits": 2}),
    ("gear", {"bits": 2}),
    ("window", {}),
    ("snapkv", {}),
    ("h2o", {}),
    ("gear-l", {"bits": 2}),
    ("quantised", {"bits": 4, "group": 0}),
    ("gear", {"bits": 4, "group": 0, "rank": 2}),
    ("expected-attention", {}),
    ("keydiff", {}),
    ("tova", {}),
)
"""In the order in which they are measured."""


def text(tokens: int = max(CONTEXTS)) -> str:
    """Of the first book that is long enough."""
    for path in sorted((DATA / "text_books").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                if len(found := json.loads(line)["text"]) > 8 * tokens:
                    return found[len(found) // 2 :][: 8 * tokens]
    raise SystemExit(f"no text in {DATA / 'text_books'}: set POLYDEC_DATA")


Seen = Mapping[int, tuple[float, Tensor, int, float]]
"""By context: nats a token, the last laws, the cache's bytes, and bits of a packed number."""


def read(
    law: Any,
    ids: tuple[int, ...],
    contexts: Sequence[int] = CONTEXTS,
    rows: int = ROWS,
    bits: Callable[[Any], float] | None = None,
) -> Seen:
    """rows: of a pass; bits: of a packed number of a cache, None: `packed`."""

    async def go() -> Seen:
        session, out = law.open_session(ids[:1]), {}
        nats, last, at = list[float](), list[Tensor](), 0
        for context in contexts:
            while at < context:
                stop = min(context, at + rows)
                scores = await session.score_draft(
                    Draft.chain_draft(ids[at], ids[at + 1 : stop]), ScoreRequest()
                )
                for i in range(stop - at):
                    if at + i >= FIRST:
                        nats.append(-float(scores.logprob_row(i)[ids[at + i + 1]]))
                    if at + i >= context - LAST:
                        last.append(scores.logprob_row(i))
                session.commit_tokens(ids[at:stop])
                at = stop
            await session.score_draft(Draft.chain_draft(ids[at]), ScoreRequest())
            out[context] = (
                sum(nats) / len(nats),
                torch.stack(last),
                session.ledger.cache.nbytes,
                (bits or packed)(session.ledger.cache),
            )
            last = []
        session.close()
        return out

    return run_coroutines([go()])[0]


def packed(cache: Any) -> float:
    """Bits that a number of a packed block takes; 32 where nothing is packed."""
    if cache.press is None:
        return 32.0
    some = [p for layer in cache.packed for p in layer]
    held = sum(p.nbytes for p in some if p is not None)
    layers, _, heads, _, head = cache.kv.shape
    return 8 * held / (len(some) * cache.press.block * 2 * heads * head) if layers else 0.0


def main() -> None:
    torch.set_num_threads(1)
    path = Path(sys.argv[1])
    done = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    have = {(r["press"], r["options"]) for r in done}
    lm = polydec.load("zoo:smollm2", dtype="torch", draft=None, ngrams=None)
    ids = lm.encode_prompt(text(), raw=True)[: max(CONTEXTS) + 1]
    law = lm.checkpoint.lm
    plain = read(law, ids)
    config = lm.network.config
    entry = 2 * 4 * config.layers * config.kv_heads * config.head
    if not done:
        for context in CONTEXTS:
            nats = plain[context][0]
            done.append(row("none", {}, context, 32.0, 1.0, f"{exp(nats):.3f}", 0.0, 1.0))
    for name, options in WAYS:
        if (name, shown(options)) in have:
            continue
        made, _ = press.build(name, options)
        seen = read(law.pressed_law(made), ids)
        for context in CONTEXTS:
            (base, exact, *_), (nats, laws, size, bits) = plain[context], seen[context]
            p, q = exact, laws
            kl = float((p.exp() * (p - q)).nan_to_num(0.0).sum(-1).mean())
            same = float((p.argmax(-1) == q.argmax(-1)).float().mean())
            ratio = f"{exp(nats - base):.4f}"
            done.append(
                row(name, options, context, bits, size / (entry * context), ratio, kl, same)
            )
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(done)
        print(done[-2:], flush=True)


def shown(options: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in options.items())


def row(
    name: str,
    options: Mapping[str, Any],
    context: int,
    bits: float,
    size: float,
    perplexity: str,
    kl: float,
    same: float,
) -> dict[str, str]:
    values = (name, shown(options), str(context), f"{bits:.2f}", f"{size:.3f}", perplexity)
    return dict(zip(COLUMNS, (*values, f"{kl:.1e}", f"{same:.3f}"), strict=True))


if __name__ == "__main__":
    main()
