"""The tables of lab/reports/native.md from what benchmarks/forward.py and threads.py measured.

    python benchmarks/native_tables.py RESULTS.jsonl [MORE.jsonl ...]

RESULTS: their lines with --json. Every time goes to native-passes.csv and native-threads.csv beside the page, which are
written anew;
the page gets the ratios to llama.cpp beside their aims between the marks `<!-- passes -->` and `<!-- /passes -->`, and the
threads between `<!-- threads -->` and `<!-- /threads -->`. No number is changed or left out.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from csv_rows import write_csv

REPORTS = Path(__file__).parents[1] / "lab" / "reports"
ROWS = ("1", "2", "4", "8", "16", "512")
Result = Mapping[str, Any]
# What ratios to llama.cpp were to reach at most: (file's ending, context, set): arithmetic: by rows.
AIMS: Mapping[tuple[str, int, str], Mapping[str, Mapping[str, float]]] = {
    ("Q4_K_M", 64, "AVX-512"): {
        "int16": dict(zip(ROWS, (0.95, 0.65, 0.50, 0.42, 0.60, 0.80))),
        "int8": dict(zip(ROWS, (0.92, 0.55, 0.38, 0.26, 0.38, 0.50))),
    },
    ("Q4_K_M", 4096, "AVX-512"): {c: dict.fromkeys(ROWS[1:], 0.8) for c in ("int16", "int8")},
    **{
        (kind, 64, "AVX-512"): {"int8": {**dict.fromkeys(ROWS, 0.85), "512": 0.8}}
        for kind in ("Q8_0", "Q4_0")
    },
    ("Q4_K_M", 64, "AVX2"): {"int16": {"8": 0.75}, "int8": {"8": 0.48}},
}
TURNS = {"int16": 2.4, "int8": 1.6}  # of t(8) / t(1), on the 1B


def sets(r: Result) -> str:
    """The instruction set of a result, without what a machine adds to its name."""
    name = r["step"][0]["kernel"].split()[1]
    return "AVX-512" if name.startswith("AVX-512") else name


def file_of(r: Result) -> str:
    return Path(r["shape"]).stem


def passes(results: Iterable[Result]) -> Iterable[dict[str, Any]]:
    """A line for each time."""
    for r in results:
        for side, by in r["ms"].items():
            for m, ms in by.items():
                yield {
                    "file": file_of(r),
                    "set": sets(r),
                    "context": r["context"],
                    "side": side,
                    "rows": m,
                    "ms": ms,
                    "to_llama_cpp": r["ratio"].get(side, {}).get(m, ""),
                    "cpu": r["machine"]["cpu"],
                    "threads": r["machine"]["threads"],
                    "load_before": r["machine"]["load_before"],
                    "load_after": r["machine"]["load_after"],
                    "read_gb_per_s": r["machine"]["read_gb_per_s"],
                }


def cell(value: float | None, aim: float | None) -> str:
    """`0.93 (0.95)`: reached, and in brackets the aim; in bold where it was missed."""
    if value is None:
        return ""
    said = f"{value:.2f}" if aim is None or value <= aim else f"**{value:.2f}**"
    return said if aim is None else f"{said} ({aim:.2f})"


def ratios(results: Iterable[Result]) -> list[str]:
    """A line for each file, context, set and arithmetic."""
    lines = [
        "| file | set | context | arithmetic | "
        + " | ".join(ROWS[:-1])
        + " | prompt of 512 | t(8) / t(1) |",
        "|---" * (4 + len(ROWS) + 1) + "|",
    ]
    for r in results:
        kind = next((k for k in ("Q4_K_M", "Q8_0", "Q4_0") if k.lower() in file_of(r).lower()), "")
        for side, by in r["ratio"].items():
            if not side.startswith("step "):
                continue
            compute = side.removeprefix("step ")
            aims = AIMS.get((kind, r["context"], sets(r)), {}).get(compute, {})
            turn = (
                TURNS.get(compute)
                if (kind, r["context"], sets(r)) == ("Q4_K_M", 64, "AVX-512")
                else None
            )
            lines.append(
                f"| {file_of(r)} | {sets(r)} | {r['context']:,} | {compute} | "
                + " | ".join(cell(by.get(m), aims.get(m)) for m in ROWS)
                + f" | {cell(r['t8_over_t1'].get(side), turn)} |"
            )
    return lines


def threads(results: Iterable[Result]) -> list[str]:
    lines = list[str]()
    for r in results:
        counts = list(dict.fromkeys(x["threads"] for x in r["passes"]))
        if not lines:
            lines = [
                "| rows | "
                + " | ".join(f"{n} threads" if n > 1 else "1 thread" for n in counts)
                + " |",
                "|---" * (1 + len(counts)) + "|",
            ]
        for m in dict.fromkeys(x["rows"] for x in r["passes"]):
            lines.append(
                f"| {m} | "
                + " | ".join(
                    f"{x['ms']:.1f} ({x['cpu_ms']:.1f})" for x in r["passes"] if x["rows"] == m
                )
                + " |"
            )
    return lines


def between(page: str, mark: str, lines: Sequence[str]) -> str:
    """The page with these lines between the two marks. Raises ValueError where it lacks them."""
    new, count = re.subn(
        rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)",
        lambda m: m[1] + "\n".join(lines) + "\n" + m[2],
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"the page has the marks of {mark} {count} times: once is expected")
    return new


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("results", nargs="+", type=Path)
    p.add_argument("--reports", type=Path, default=REPORTS, help="the folder of native.md")
    o = p.parse_args()
    results = [
        json.loads(line)
        for path in o.results
        for line in path.read_text().splitlines()
        if line.startswith("{")
    ]
    forward, pooled = (
        [r for r in results if "ms" in r and r["step"]],
        [r for r in results if "passes" in r],
    )
    page = (o.reports / "native.md").read_text(encoding="utf-8")
    if forward:
        write_csv(o.reports / "native-passes.csv", list(passes(forward)))
        page = between(page, "passes", ratios(forward))
    if pooled:
        write_csv(
            o.reports / "native-threads.csv",
            [
                {
                    "model": r["model"],
                    "kernel": r["kernel"],
                    "cores": r["cores"],
                    "load": round(r["load"], 2),
                    **x,
                }
                for r in pooled
                for x in r["passes"]
            ],
        )
        page = between(page, "threads", threads(pooled))
    (o.reports / "native.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
