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
from pathlib import Path
from typing import Any

import torch
from native_tables import between
from presses import text

import polydec
from polydec import Ask, Sampling
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.bench.cache_cost import (
    NO_PRESS,
    CachePressSetting,
    measure_cache_costs,
    parse_press_setting,
)
from polydec.methods.registry import press
from polydec.models.nets.query import NetworkQuery

CONTEXTS = (1000, 2000, 4000, 8000)
TIMED = (2000, 4000)
"""Contexts with --times."""
TOKENS, TURNS = 48, 21
SHOWN = ("2000", "8000")
"""Contexts of the page's table."""
COLUMNS = (
    "set", "press", "context", "bytes", "perplexity", "kl", "same", "row", "rows", "plain", "auto",
)  # fmt: skip
WAYS = (
    NO_PRESS,
    *map(
        parse_press_setting,
        (
            "quantised:bits=8",
            "quantised:bits=8:group=64",
            "quantised:bits=4",
            "quantised:bits=4:group=0",
            "hadamard:bits=4",
        ),
    ),
)


def name(way: CachePressSetting) -> str:
    """How the file calls it: `quantised` is not named."""
    return way.setting_label.removeprefix("quantised ")


def law_of(lm: Any, way: CachePressSetting) -> Any:
    law = lm.checkpoint.lm
    return law if way is NO_PRESS else law.pressed_law(press.build(way.name, way.options)[0])


def laws(lm: Any, ids: tuple[int, ...]) -> dict[tuple[str, int], list[str]]:
    out = dict[tuple[str, int], list[str]]()
    for costs in measure_cache_costs(lm, ids, WAYS[1:], CONTEXTS):
        for cost in costs:
            ratio = 1.0 if cost.setting is NO_PRESS else cost.perplexity
            out[name(cost.setting), cost.length] = [
                f"{cost.share:.3f}",
                f"{ratio:.4f}",
                f"{cost.kl:.1e}",
                f"{cost.same:.3f}",
            ]
        print(name(costs[0].setting), [out[name(c.setting), c.length] for c in costs], flush=True)
    return out


def attention(
    lm: Any, ids: tuple[int, ...], contexts: tuple[int, ...], rows: int
) -> dict[tuple[str, int], float]:
    """CPU milliseconds of attention of so many rows."""
    network, out = lm.network, dict[tuple[str, int], float]()
    for context in contexts:
        queries = {("none", 16): asked(network, filled(law_of(lm, NO_PRESS), ids[:17]), rows)}
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
            more = {} if way is NO_PRESS else {"cache": way.name, "cache_options": way.options}

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
