"""What a smaller cache costs: bytes, perplexity and the distance of laws, for every press, on one base and one number type.

    POLYDEC_DATA=TEXTS python benchmarks/presses.py lab/reports/presses.csv --lengths 1000 2000
    POLYDEC_DATA=TEXTS python benchmarks/presses.py lab/reports/presses-texts.csv --texts books python stories --dtype auto \\
        --lengths 1000 2000 4000 --presses quantised:bits=4 (and others)
    POLYDEC_DATA=TEXTS python benchmarks/presses.py lab/reports/presses-long.csv --dtype auto \\
        --lengths 4000 8000 --presses hadamard:bits=4:group=32 quantised:bits=4
    python benchmarks/presses.py lab/reports/presses.csv --page lab/reports/caches-measured.md --svg lab/reports/presses.svg
    python benchmarks/presses.py lab/reports/presses-texts.csv --page lab/reports/caches-measured.md --mark texts

zoo:smollm2 reads a text under each press and with the cache as it is, as `polydec cache-cost` does, whose figures these are.
Weights are rounded to float16, keys, values and all else are float32; with --dtype auto the compiled step reads. A text is the
first of its folder that is long enough, or as many as it takes (stories are short), none of them held out: SHA-1 mod 10 is
below 7, as the default of `hadamard` was chosen on them. Rows are written press by press; one that is there is not measured
again, so lengths can be added: --longest 8000 --lengths 4000 reads the text that 8,000 tokens were taken of. Counts and
distances only: nothing here is a time. Tokens a second are those of benchmarks/presses_step.py, or of `polydec cache-cost` on
one's own machine. --page and --svg measure nothing: they write the table and the picture of what the file has.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from html import escape
from pathlib import Path

import torch
from csv_rows import write_csv
from native_tables import between

import polydec
from polydec.lab.bench.cache_cost import measure_cache_costs, parse_press_setting

LENGTHS = (1000, 2000, 4000, 8000)
SHOWN = ("1000", "2000")
"""Lengths of the page's table and of the picture."""
WAYS = (
    "quantised:bits=8", "hadamard:bits=8",
    "quantised:bits=4", "quantised:bits=4:group=64", "quantised:bits=4:group=0", "hadamard:bits=4", "hadamard:bits=4:group=64",
    "gear:bits=4:group=0:rank=2", "gear-l:bits=4:group=0:rank=2",
    "quantised:bits=2", "hadamard:bits=2", "gear:bits=2", "gear-l:bits=2",
    "window", "snapkv", "kvzip", "h2o", "expected-attention", "keydiff", "tova",
)  # fmt: skip
"""In the order in which they are measured and shown."""
FAMILIES = {
    "8 bits": "#2563eb",
    "4 bits": "#16a34a",
    "2 bits": "#d97706",
    "forgets tokens": "#dc2626",
}
Rows = Sequence[Mapping[str, str]]


def text(tokens: int, folder: str = "books") -> str:
    """The second half of the first text that is long enough, else as many texts as it takes."""
    data = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
    joined = ""
    for found in rows_of_folder(data / f"text_{folder}"):
        if len(found) > 8 * tokens:
            return found[len(found) // 2 :][: 8 * tokens]
        joined += f"{found}\n\n"
        # Of folders that hold any long text one is found before.
        if folder == "stories" and len(joined) > 8 * tokens:
            return joined
    raise SystemExit(f"no text of that length in {data / f'text_{folder}'}: set POLYDEC_DATA")


def rows_of_folder(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                found = json.loads(line)["text"]
                if int(sha1(found.encode()).hexdigest(), 16) % 10 < 7:
                    yield found


def shown(options: Mapping[str, object]) -> str:
    return " ".join(f"{k}={v}" for k, v in options.items())


def measure(a: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    done = read_rows(a.csv) if a.csv.exists() else []
    have = {(row["text"], row["press"], row["options"], row["length"]) for row in done}
    lm = polydec.load("zoo:smollm2", dtype=a.dtype, draft=None, ngrams=None, threads=1)
    for name in a.texts:
        missing = [
            s
            for s in map(parse_press_setting, a.presses)
            if any((name, s.name, shown(s.options), str(n)) not in have for n in a.lengths)
        ][: a.most]
        if not missing:
            continue
        longest = max(a.longest or 0, *a.lengths)
        ids = lm.encode_prompt(text(longest, name), raw=True)[: max(a.lengths) + 1]
        for costs in measure_cache_costs(lm, ids, missing, a.lengths):
            for cost in costs:
                row = {"text": name, **{k: str(v) for k, v in cost.as_record().items()}}
                if (name, row["press"], row["options"], row["length"]) not in have:
                    done.append(row)
            write_csv(a.csv, done)
            print(*(list(cost.as_record().values()) for cost in costs), flush=True)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def in_order(rows: Rows) -> list[tuple[str, str]]:
    """Presses and options, in the order of WAYS, others behind them."""
    settings = [parse_press_setting(way) for way in WAYS]
    there = dict.fromkeys((row["press"], row["options"]) for row in rows if row["press"] != "none")
    known = [way for s in settings if (way := (s.name, shown(s.options))) in there]
    return [*known, *(way for way in there if way not in known)]


def table(rows: Rows, lengths: Sequence[str]) -> list[str]:
    """The lines of a page's table of one text: in each cell the figures at the lengths."""
    heads = {"bits": "bits", "share": "of float32", "perplexity": "perplexity", "kl": "KL"}
    heads |= {"same": "same"}
    lines = [f"| press | {' | '.join(heads.values())} |", "|---" * (1 + len(heads)) + "|"]
    by = {(row["press"], row["options"], row["length"]): row for row in rows}
    for press, options in in_order(rows):
        found = [by[press, options, length] for length in lengths]
        cells = [", ".join(row[column] for row in found) for column in heads]
        lines.append(f"| {named(press, options)} | {' | '.join(cells)} |")
    return lines


def text_table(rows: Rows) -> list[str]:
    """The lines of a page's table of several texts: perplexity at every length, and the mean of KL over all of them."""
    texts = list(dict.fromkeys(row["text"] for row in rows))
    lines = [f"| press | bits | {' | '.join(texts)} | KL, mean |", "|---" * (3 + len(texts)) + "|"]
    for press, options in in_order(rows):
        mine = [row for row in rows if (row["press"], row["options"]) == (press, options)]
        cells = [", ".join(r["perplexity"] for r in mine if r["text"] == text) for text in texts]
        kl = sum(float(row["kl"]) for row in mine) / len(mine)
        lines.append(
            f"| {named(press, options)} | {mine[0]['bits']} | {' | '.join(cells)} | {kl:.4f} |"
        )
    return lines


def named(press: str, options: str) -> str:
    return f"`{press}` {options}".strip()


def family(press: str, options: str) -> str:
    bits = [part for part in options.split() if part.startswith("bits=")]
    return f"{bits[0][5:]} bits" if bits else "forgets tokens"


def svg(rows: Rows) -> str:
    """KL over the share of float32's bytes at the last shown length, both logarithmic; points have numbers, named beside."""
    width, height, left, top, wide, high = 900, 560, 70, 40, 560, 450
    least, most, bottom, ceiling = -2.75, 0.25, -5.5, 0.0

    def x(share: float) -> float:
        return left + (math.log2(share) - least) / (most - least) * wide

    def y(kl: float) -> float:
        return top + (ceiling - math.log10(kl)) / (ceiling - bottom) * high

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle">bytes, of float32\'s, at '
        f"{int(SHOWN[-1]):,} tokens</text>",
        f'<text x="{left - 8}" y="{top - 14}" text-anchor="end">KL, nats</text>',
    ]
    for e in range(-5, 1):
        at = y(10.0**e)
        out += [
            f'<line x1="{left}" x2="{left + wide}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>',
            f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**e:g}</text>',
        ]
    for share in (0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0):
        at = x(share)
        out += [
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{top + high}" stroke="#eee"/>',
            f'<text x="{at:.1f}" y="{top + high + 18}" text-anchor="middle">{share:g}</text>',
        ]
    by = {(row["press"], row["options"]): row for row in rows if row["length"] == SHOWN[-1]}
    for number, (press, options) in enumerate(in_order(rows), 1):
        row = by[press, options]
        colour = FAMILIES[family(press, options)]
        beside = top + 22 * (number - 1)
        for at, level in (
            (x(float(row["share"])), y(float(row["kl"]))),
            (left + wide + 30, beside),
        ):
            out += [
                f'<circle cx="{at:.1f}" cy="{level:.1f}" r="8" fill="{colour}" stroke="white"/>',
                f'<text x="{at:.1f}" y="{level + 3:.1f}" text-anchor="middle" font-size="9" fill="white">{number}</text>',
            ]
        name = escape(f"{press} {options}".strip())
        out.append(f'<text x="{left + wide + 46}" y="{beside + 4}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--texts", nargs="+", default=["books"], help="folders: text_NAME")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument(
        "--longest", type=int, help="tokens that the text has (the greatest length)"
    )
    parser.add_argument("--presses", nargs="+", default=list(WAYS))
    parser.add_argument("--most", type=int, help="presses of a text that are measured at most")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--mark", default="presses", help="of the page's table")
    parser.add_argument("--shown", nargs="+", default=SHOWN, help="lengths of the page's table")
    parser.add_argument("--svg", type=Path)
    a = parser.parse_args()
    if a.page is None and a.svg is None:
        return measure(a)
    rows = read_rows(a.csv)
    if a.page is not None:
        several = len({row["text"] for row in rows}) > 1
        lines = text_table(rows) if several else table(rows, a.shown)
        a.page.write_text(between(a.page.read_text("utf-8"), a.mark, lines), "utf-8")
    if a.svg is not None:
        a.svg.write_text(svg(rows), "utf-8")


if __name__ == "__main__":
    main()
