"""What it costs to read a text again after an edit, and how far the law is from that of the new text.

    POLYDEC_DATA=TEXTS python benchmarks/edits.py lab/reports/edits.csv lab/reports/edits-in-a-row.csv

Forty real edits of Python files (`code_edits`; only files whose SHA-1 mod 10 is 7 or more, which nobody tuned on), the first
ones that fit: one place is changed, at most 60 tokens are new, and at least 200 stand behind them, as zoo:smollm2 on the
compiled step reads them with one thread. Seconds are CPU time of the process; the lower of two runs counts. A row is written
as soon as it is known, and one that is there is not measured again.

- recompute: the entries before the edit are kept and all others fed (reuse "prefix"); edited: reuse "edited"; times: the ratio
- near: KL of the law of the new text from the approximate one, nats, mean over places in the 64 tokens behind the edit;
  far: over places further on; naive: the same without turning keys to their new positions
- same, naive_same: the share of all these places whose likeliest token is the same

The second file: of four files a line at twenty places is deleted, and typed again one by one; each row is one of these edits in
a row, over entries that earlier edits left.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import polydec
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.models.sessions.reuse import common_prefix_length

DATA = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
EDITS, NEW, BEHIND, LONGEST = 40, 60, 200, 1400
NEAR, PLACES, FILES, STEPS = 64, 24, 4, 20
SILENT = ScoreRequest(law=RowDetail.NOTHING)


def kept_apart(text: str) -> bool:
    return int(hashlib.sha1(text.encode()).hexdigest(), 16) % 10 >= 7


def lines(folder: str) -> Iterator[dict[str, Any]]:
    for path in sorted((DATA / folder).glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as rows:
            yield from map(json.loads, rows)


def edits(model: Any) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], int, int]]:
    """Name, the old and the new ids, where they part, and how many last ones they share."""
    for row in lines("code_edits"):
        if not kept_apart(row["before"]) or not 800 < len(row["before"]) < 5000:
            continue
        old, new = (model.encode_prompt(row[when], raw=True) for when in ("before", "after"))
        first = common_prefix_length(old, new)
        last = min(common_prefix_length(old[::-1], new[::-1]), len(old) - first, len(new) - first)
        fresh = len(new) - first - last
        fits = len(old) < LONGEST and first >= 16 and last >= BEHIND and fresh <= NEW
        if fits and len(old) != len(new):
            yield row["id"], old, new, first, last


def read(law: Any, ids: tuple[int, ...], keep: bool = False) -> tuple[float, Any]:
    """Seconds until the law behind a text is known, and the session where it is kept."""
    session = law.open_session(ids)

    async def go() -> None:
        await session.prefill_prompt(SILENT)
        scores = await session.score_draft(
            Draft.chain_draft(ids[-1]), ScoreRequest(law=RowDetail.ARGMAX)
        )
        scores.likeliest_token(0)

    begin = time.process_time()
    run_coroutines([go()])
    took = time.process_time() - begin
    if not keep:
        session.close()
    return took, session


def laws(session: Any, ids: tuple[int, ...], places: list[int]) -> list[Tensor]:
    """The law behind the first `place` tokens, for each: of entries as they are, the last token alone fed anew."""
    out = list[Tensor]()
    for place in places:
        twin = session.fork()
        twin.rewind_tokens(len(ids) - place)
        out.append(
            run_coroutines([twin.score_draft(Draft.chain_draft(ids[place - 1]), ScoreRequest())])[0]
            .logprob_row(0)
            .clone()
        )
        twin.close()
    return out


def kl(p: list[Tensor], q: list[Tensor]) -> float:
    return sum(float((a.exp() * (a - b)).sum()) for a, b in zip(p, q)) / max(1, len(p))


def same(p: list[Tensor], q: list[Tensor]) -> float:
    return sum(int(a.argmax() == b.argmax()) for a, b in zip(p, q)) / max(1, len(p))


def taken(lm: Any, key: str, kind: bool, old: Any, new: Any) -> tuple[float, Any, Any]:
    """Seconds for the new text where the old one is kept, the session, and what was taken."""
    lm.texts.forget_entries(key)
    read(lm.reusing_view(key, kind), old)
    first, _ = read(lm.reusing_view(key, kind), new)
    lm.texts.forget_entries(key)
    read(lm.reusing_view(key, kind), old)
    view = lm.reusing_view(key, kind)
    second, session = read(view, new, keep=True)
    return min(first, second), session, view.within[1]


def measured(lm: Any, name: str, old: Any, new: Any, first: int, last: int) -> dict[str, Any]:
    # one token more, so that rewinding leaves a place behind every token
    whole = (*new, new[-1])
    at, end = len(new) - last, len(new)
    near = [*range(at + 1, min(at + NEAR, end) + 1, 2)]
    behind = range(at + NEAR + 1, end + 1)
    far = [*behind][:: max(1, len(behind) // PLACES)]
    recompute, exact, _ = taken(lm, "exact", False, old, whole)
    edited, moved, reuse = taken(lm, "edited", True, old, whole)
    turned = reuse.turned
    lm.network.turn_entries = lambda kv, first, by: kv.clone()
    _, spliced, _ = taken(lm, "naive", True, old, whole)
    del lm.network.turn_entries
    text = whole[:-1]
    seen = [
        [laws(session, text, places) for places in (near, far)]
        for session in (exact, moved, spliced)
    ]
    for session in (exact, moved, spliced):
        session.close()
    (a, b), (c, d), (e, f) = seen
    return {
        "edit": name,
        "tokens": len(new),
        "at": first,
        "removed": len(old) - first - last,
        "added": len(new) - first - last,
        "turned": turned,
        "recompute_s": f"{recompute:.3f}",
        "edited_s": f"{edited:.3f}",
        "times": f"{recompute / edited:.1f}",
        "near": f"{kl(a, c):.2e}",
        "far": f"{kl(b, d):.2e}",
        "naive_near": f"{kl(a, e):.2e}",
        "naive_far": f"{kl(b, f):.2e}",
        "same": f"{same(a + b, c + d):.3f}",
        "naive_same": f"{same(a + b, e + f):.3f}",
    }


def in_a_row(model: Any, lm: Any) -> Iterator[dict[str, Any]]:
    """Lines that are typed again one by one."""
    dice, count = random.Random(1), 0
    for row in lines("text_python"):
        if count == FILES:
            return
        if not kept_apart(row["text"]) or not 2500 < len(row["text"]) < 4000:
            continue
        written = row["text"].splitlines(keepends=True)
        places = [i for i, line in enumerate(written[2:-8], 2) if 8 < len(line) < 100]
        if len(places) < STEPS:
            continue
        count += 1
        missing = dice.sample(places, STEPS)
        lm.texts.forget_entries("")
        before = "".join(x for i, x in enumerate(written) if i not in missing)
        read(lm.reusing_view("", True), model.encode_prompt(before, raw=True))
        for step in range(1, STEPS + 1):
            left = set(missing[step:])
            text = "".join(x for i, x in enumerate(written) if i not in left)
            ids, last = model.encode_prompt(text, raw=True), lm.texts.take_text("").text
            view = lm.reusing_view("", True)
            edited, moved = read(view, ids, keep=True)
            n = common_prefix_length(last, ids)
            law = lm.reusing_view("exact", False)
            lm.texts.forget_entries("exact")
            read(law, ids[: n + 1])
            recompute, exact = read(lm.reusing_view("exact", False), ids, keep=True)
            places_ = [*range(len(ids) - 47, len(ids), 4)]
            p, q = (laws(x, ids, places_) for x in (exact, moved))
            moved.close()
            exact.close()
            yield {
                "file": row["id"],
                "edit": step,
                "tokens": len(ids),
                "recompute_s": f"{recompute:.3f}",
                "edited_s": f"{edited:.3f}",
                "kl": f"{kl(p, q):.2e}",
                "same": f"{same(p, q):.3f}",
            }


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def known(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def main(one: str, row: str) -> None:
    torch.set_num_threads(1)
    model = polydec.load("zoo:smollm2", draft=None, ngrams=None, threads=1)
    lm, rows = model.checkpoint.lm, known(Path(one))
    print(model.checkpoint.kernel, flush=True)
    done = {found["edit"] for found in rows}
    for name, old, new, first, last in edits(model):
        if len(rows) == EDITS:
            break
        if name not in done:
            rows.append(measured(lm, name, old, new, first, last))
            write(Path(one), rows)
            print(rows[-1], flush=True)
    if not Path(row).exists():
        write(Path(row), [*in_a_row(model, lm)])


if __name__ == "__main__":
    main(*sys.argv[1:])
