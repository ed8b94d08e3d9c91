"""What packed keys and values cost and gain in the compiled step: bytes, distance of laws, and one thread's CPU time.

    POLYDEC_DATA=TEXTS python benchmarks/presses_step.py lab/reports/presses-step.csv
    POLYDEC_ISA=AVX2 python benchmarks/presses_step.py lab/reports/presses-step.csv --times
    python benchmarks/presses_step.py lab/reports/presses-step.csv --page lab/reports/caches-measured.md  # measures nothing

zoo:smollm2 reads one book in the compiled step, 64 rows a pass, under each press and with the cache as it is. Rows of one
instruction set are added at once; --times leaves out the distances, which are the same on every set; --page writes the
short table of what the file has.

- bytes, perplexity, kl, same: as benchmarks/presses.py has them
- row, rows: attention of one row and of eight behind a text, CPU milliseconds of one thread: what a pass takes there, less
  what it takes behind 16 tokens. Caches of all ways are there at once and take turns, the lower quartile of 21 counts
- plain, auto: tokens a second of CPU time of one thread, 48 tokens behind the text, which has been read before
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import torch
from native_tables import between
from presses import read, shown, text

import polydec
from polydec import Ask, Sampling
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.registry import press
from polydec.models.nets.query import NetworkQuery

CONTEXTS = (1000, 2000, 4000, 8000)
TIMED = (2000, 4000)
"""Contexts with --times."""
ROWS, TOKENS, TURNS = 64, 48, 21
SHOWN = ("2000", "8000")
"""Contexts of the page's table."""
COLUMNS = (
    "set", "press", "context", "bytes", "perplexity", "kl", "same", "row", "rows", "plain", "auto",
)  # fmt: skip
WAYS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"bits": 8},
    {"bits": 8, "group": 64},
    {"bits": 4},
    {"bits": 4, "group": 0},
)
"""Options of `quantised`; None: the cache as it is."""


def name(way: Mapping[str, Any] | None) -> str:
    return "none" if way is None else shown(way)


def law_of(lm: Any, way: Mapping[str, Any] | None) -> Any:
    law = lm.checkpoint.lm
    return law if way is None else law.pressed_law(press.build("quantised", way)[0])


def laws(lm: Any, ids: tuple[int, ...]) -> dict[tuple[str, int], list[str]]:
    config = lm.network.config
    entry = 2 * 4 * config.layers * config.kv_heads * config.head
    seen, out = {}, dict[tuple[str, int], list[str]]()
    for way in WAYS:
        seen[name(way)] = read(law_of(lm, way), ids, CONTEXTS, ROWS, lambda _: 0.0)
        for context in CONTEXTS:
            (base, p, *_), (nats, q, size, _) = seen["none"][context], seen[name(way)][context]
            kl = float((p.exp() * (p - q)).nan_to_num(0.0).sum(-1).mean())
            same = float((p.argmax(-1) == q.argmax(-1)).float().mean())
            out[name(way), context] = [
                f"{size / (entry * context):.3f}",
                f"{exp(nats - base):.4f}",
                f"{kl:.1e}",
                f"{same:.3f}",
            ]
        print(name(way), [out[name(way), c] for c in CONTEXTS], flush=True)
    return out


def attention(
    lm: Any, ids: tuple[int, ...], contexts: tuple[int, ...], rows: int
) -> dict[tuple[str, int], float]:
    """CPU milliseconds of attention of so many rows."""
    network, out = lm.network, dict[tuple[str, int], float]()
    for context in contexts:
        queries = {("none", 16): asked(network, filled(law_of(lm, None), ids[:17]), rows)}
        for way in WAYS:
            law = law_of(lm, way)
            queries[name(way), context] = asked(network, filled(law, ids[: context + 1]), rows)
        spent = {key: list[float]() for key in queries}
        for _ in range(TURNS):
            for key, query in queries.items():
                start = time.thread_time()
                network.forward([query])
                spent[key].append(time.thread_time() - start)
        quartile = {key: sorted(times)[TURNS // 4] * 1e3 for key, times in spent.items()}
        for way in WAYS:
            out[name(way), context] = quartile[name(way), context] - quartile["none", 16]
    return out


def filled(law: Any, ids: tuple[int, ...]) -> Any:
    """A cache that holds all but the last of these tokens."""

    async def go() -> Any:
        session = law.open_session(ids)
        await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        await session.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest(law=RowDetail.NOTHING))
        session.ledger.drop_draft()
        return session.ledger.cache.fork()

    return run_coroutines([go()])[0]


def asked(network: Any, cache: Any, rows: int) -> NetworkQuery:
    first = cache.end
    cache.stage_slots(range(-1, rows - 1))
    query = NetworkQuery(cache, first, (7,) * rows, range(rows), ScoreRequest(law=RowDetail.ARGMAX))
    network.forward([query])
    return query


def speed(
    lm: Any, ids: tuple[int, ...], contexts: tuple[int, ...], method: str
) -> dict[tuple[str, int], float]:
    """Tokens a second of CPU time."""
    lm.checkpoint.lm.keep = 2
    out = dict[tuple[str, int], float]()
    for context in contexts:
        for way in WAYS:
            more = {} if way is None else {"cache": "quantised", "cache_options": way}

            def answer(length: int, context: int = context, more: Any = more) -> Any:
                ask = Ask(
                    ids[:context],
                    raw=True,
                    method=method,
                    max_tokens=length,
                    ignore_eos=True,
                    sampling=Sampling(temperature=0.0),
                    **more,
                )
                return once(lm, ask)

            answer(
                TOKENS
            )  # the first long answer of a press measures what its rows cost (some two seconds)
            start = time.thread_time()
            answer(TOKENS)
            out[name(way), context] = TOKENS / (time.thread_time() - start)
        print(method, context, {name(w): round(out[name(w), context], 1) for w in WAYS}, flush=True)
    return out


def once(lm: Any, ask: Ask) -> Any:
    engine = polydec.Engine(lm)
    ticket = engine.submit(ask)
    while engine.step():
        pass
    return ticket.completion()


def short(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The lines of the page's table: in each cell the figures of both contexts, of AVX-512."""
    heads = {"bytes": "bytes", "perplexity": "perplexity", "kl": "KL", "row": "one row, ms"}
    heads |= {"rows": "eight rows, ms", "plain": "`plain`, tokens a second", "auto": "`auto`"}
    lines = [f"| press | {' | '.join(heads.values())} |", "|---" * (1 + len(heads)) + "|"]
    by = {(row["press"], row["context"]): row for row in rows if row["set"].startswith("AVX-512")}
    for way in dict.fromkeys(name for name, _ in by):
        both = [by[way, context] for context in SHOWN]
        cells = [", ".join(row[column] for row in both) for column in heads]
        lines.append(f"| {way if way == 'none' else f'`{way}`'} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    if "--page" in sys.argv:
        with Path(sys.argv[1]).open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        page = Path(sys.argv[sys.argv.index("--page") + 1])
        page.write_text(between(page.read_text("utf-8"), "step", short(rows)), "utf-8")
        return
    torch.set_num_threads(1)
    path, distances = Path(sys.argv[1]), "--times" not in sys.argv
    done = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    lm = polydec.load("zoo:smollm2", threads=1)
    kernel = lm.network.kernel.removeprefix("native ").split()[0]
    if any(r["set"] == kernel for r in done):
        raise SystemExit(f"{path} has rows of {kernel} already")
    ids = tuple(lm.encode_prompt(text(2 * max(CONTEXTS)), raw=True)[: max(CONTEXTS) + 64])
    contexts = CONTEXTS if distances else TIMED
    told = laws(lm, ids) if distances else {}
    one, eight = attention(lm, ids, contexts, 1), attention(lm, ids, contexts, 8)
    plain, auto = speed(lm, ids, contexts, "plain"), speed(lm, ids, contexts, "auto")
    for context in contexts:
        for way in WAYS:
            key = name(way), context
            times = (
                f"{one[key]:.2f}",
                f"{eight[key]:.2f}",
                f"{plain[key]:.1f}",
                f"{auto[key]:.1f}",
            )
            done.append(
                dict(
                    zip(
                        COLUMNS,
                        (kernel, name(way), str(context), *told.get(key, [""] * 4), *times),
                        strict=True,
                    )
                )
            )
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(done)


if __name__ == "__main__":
    main()
