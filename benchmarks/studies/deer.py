"""How deep a target accepts what one pass of a masked-diffusion draft proposes, beside a draft that writes token by token.

    python -m benchmarks.studies.deer --write problems.jsonl
    polydec train deer --target zoo:reasoner --data problems.jsonl --each 700 --context 256 --out two0 ...
    python -m benchmarks.studies.deer --target zoo:reasoner --data problems.jsonl --count 60 --svg lab/reports/deer.svg \
        "two stages=deer:two0,two1,two2" "token by token=draft-model:ar0,ar1,ar2" ...

Each row is of a kind of draft, a sampling and a depth: of the drafts that were right up to there the share whose next token
was accepted (`here`), the share of all drafts accepted so far (`so far`), and in the row of depth 0 the tokens a
target pass. Seeds are the directories (`each`); intervals are Student's, of the mean over
them. Then the first kind is held against each other, seed by seed. Prompts are held out by their SHA-1.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.studies.intervals import interval_half_width

from polydec import Engine, load
from polydec.lab.train.data import held_out
from polydec.lab.train.problems import draw_problem
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.models.formats import text_rows


@dataclass(frozen=True)
class Kind:
    """A kind of draft. name: as the table has it; method: that decodes with it; places: a directory a seed; options: of the
    method, beside the depth."""

    name: str
    method: str
    places: tuple[str, ...]
    options: tuple[tuple[str, float | bool], ...]

    @staticmethod
    def of(text: str) -> Kind:
        """name=method[+option=value...]:directory,directory,..."""
        name, _, rest = text.partition("=")
        how, _, places = rest.rpartition(":")
        method, *options = how.split("+")
        pairs = tuple((o.split("=")[0], json.loads(o.split("=")[1])) for o in options)
        return Kind(name, method, tuple(places.split(",")), pairs)


def write(path: Path, count: int, unseen: int) -> None:
    """Prompts of three kinds of problems, `count` to learn from and `unseen` held out of each."""
    with open(path, "w", encoding="utf-8") as f:
        for kind in ("chain", "make", "order"):
            for apart, most in ((False, count), (True, unseen)):
                for question in list(_questions(kind, apart, most)):
                    f.write(json.dumps({"prompt": question, "category": kind}) + "\n")


def _questions(kind: str, unseen: bool, most: int) -> Iterator[str]:
    known, number = set[str](), 0
    while len(known) < most:
        question = draw_problem(kind, 77, number, unseen).question
        number += 1
        if question not in known:
            known.add(question)
            yield question


def depths(
    kind: Kind, place: str, target: str, prompts: Sequence[str], temperature: float, most: int
) -> dict[str, list[int]]:
    """Of each depth from 1 the drafts that reached it and those accepted there; and tokens, target passes, and passes of the
    draft."""
    depth = {"draft-model": "depth"}.get(kind.method, "block")
    lm = load(target, draft=place, threads=1)
    engine, options = Engine(lm, max_running=8), {depth: most, **dict(kind.options)}
    reached, kept, tokens, passes = [0] * most, [0] * most, 0, 0
    events = list[list[object]]()
    asked = []
    for n, prompt in enumerate(prompts):
        events.append([])
        asked.append(
            engine.submit(
                prompt,
                method=kind.method,
                options=options,
                max_tokens=96,
                seed=n,
                sampling=lm.sampling_with(temperature=temperature),
                on=events[-1].append,
            )
        )
    for ticket, seen in zip(engine.run(asked), events, strict=True):
        tokens += len(ticket.token_ids)
        passes += ticket.metrics["target_passes"]
        drafted = 0
        for event in seen:
            if isinstance(event, ProposedEvent):
                drafted = len(event.token) - 1
            elif isinstance(event, VerifiedEvent) and drafted:
                for i in range(min(drafted, len(event.path) + 1)):
                    reached[i] += 1
                    kept[i] += i < len(event.path)
    return {"reached": reached, "kept": kept, "tokens": [tokens], "passes": [passes]}


def clock(kinds: Sequence[Kind], target: str, prompts: Sequence[str], most: int) -> None:
    """Of each kind, by its first directory, greedy and one request at a time: the ratio of plain decoding's seconds to its own,
    median over prompts of the best of three, in turns; and whether all texts are plain's."""
    seconds = {kind.name: list[float]() for kind in kinds}
    same = True
    for prompt in prompts:
        best, texts = dict[str, float](), dict[str, tuple[int, ...]]()
        for _ in range(3):
            for name, engine, fields in _engines(kinds, target, most):
                began = time.perf_counter()
                (ticket,) = engine.run([engine.submit(prompt, max_tokens=96, **fields)])
                took = time.perf_counter() - began
                best[name] = min(best.get(name, took), took)
                texts[name] = ticket.token_ids
        same &= len(set(texts.values())) == 1
        for kind in kinds:
            seconds[kind.name].append(best["plain"] / best[kind.name])
    for name, ratios in seconds.items():
        print(f"{name}: {statistics.median(ratios):.2f} times plain, texts the same: {same}")


@cache
def _engines(kinds: tuple[Kind, ...], target: str, most: int) -> list[tuple[str, Engine, Any]]:
    out: list[tuple[str, Engine, Any]] = [
        ("plain", Engine(load(target, draft=None, threads=1)), {"method": "plain"})
    ]
    for kind in kinds:
        depth = {"draft-model": "depth"}.get(kind.method, "block")
        options = {depth: most, **dict(kind.options)}
        engine = Engine(load(target, draft=kind.places[0], threads=1))
        out.append((kind.name, engine, {"method": kind.method, "options": options}))
    return out


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and both ends of Student's 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, mean, mean
    half = interval_half_width(values)
    return mean, mean - half, mean + half


COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#8c510a", "#4d4d4d")


def svg(out: Sequence[Sequence[str]], most: int) -> str:
    """Of each sampling the share of drafts that are accepted up to each depth, with a bar for the interval."""
    heats = list(dict.fromkeys(row[1] for row in out))
    names = list(dict.fromkeys(row[0] for row in out))
    wide, high, left, foot = 330, 260, 44, 40 + 16 * len(names)
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide * len(heats)}" height="{high + foot}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{wide * len(heats)}" height="{high + foot}" fill="white"/>',
    ]

    def place(panel: int, depth: int, share: float) -> tuple[float, float]:
        return panel * wide + left + (wide - left - 12) * depth / most, 30 + (high - 60) * (
            1 - share
        )

    for panel, heat in enumerate(heats):
        x, y = place(panel, 0, 0)
        made.append(
            f'<text x="{x}" y="18" font-weight="bold">accepted up to a depth, T = {heat}</text>'
        )
        for share in (0, 0.5, 1):
            _, y = place(panel, 0, share)
            end, _ = place(panel, most, share)
            made.append(f'<line x1="{x}" y1="{y}" x2="{end}" y2="{y}" stroke="#ddd"/>')
            made.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{share}</text>')
        for depth in range(most + 1):
            at, y = place(panel, depth, 0)
            made.append(f'<text x="{at}" y="{y + 16}" text-anchor="middle">{depth}</text>')
        for name, colour in zip(names, COLOURS):
            some = [r for r in out if r[:2] == [name, heat] and r[3] == "so far"]
            points = [place(panel, 0, 1), *(place(panel, int(r[2]), float(r[4])) for r in some)]
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            made.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
            for row in some:
                ends = [
                    place(panel, int(row[2]), min(1.0, max(0.0, float(row[i])))) for i in (5, 6)
                ]
                made.append(
                    f'<line x1="{ends[0][0]:.1f}" y1="{ends[0][1]:.1f}" x2="{ends[1][0]:.1f}" y2="{ends[1][1]:.1f}" '
                    f'stroke="{colour}"/>'
                )
    for i, (name, colour) in enumerate(zip(names, COLOURS)):
        y = high + 12 + 16 * i
        made.append(f'<rect x="{left}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        made.append(f'<text x="{left + 16}" y="{y}">{escape(name)}</text>')
    return "\n".join([*made, "</svg>"]) + "\n"


def between(out: Sequence[Sequence[str]], one: str, other: str, ratio: bool) -> None:
    """Print, seed by seed, how far one kind is ahead of another: tokens a target pass, and at the first gap."""
    for heat in dict.fromkeys(row[1] for row in out):
        for depth, figure in (("0", "tokens a target pass"), ("1", "here")):
            mine, theirs = (
                [
                    float(x)
                    for r in out
                    if r[:4] == [name, heat, depth, figure]
                    for x in r[7].split()
                ]
                for name in (one, other)
            )
            pairs = list(zip(mine, theirs, strict=True))
            told = spread([a / b if ratio else a - b for a, b in pairs])
            print(f"{one} over {other}, T = {heat}, {figure}:", *(f"{x:.3f}" for x in told))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--write")
    parser.add_argument("--target", default="zoo:reasoner")
    parser.add_argument("--data")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--clock", action="store_true", help="seconds in place of depths")
    parser.add_argument("--csv")
    parser.add_argument("--svg")
    args = parser.parse_args()
    if args.write:
        return write(Path(args.write), 900, 150)
    texts = [p for item in text_rows.read_text_rows(Path(args.data)) for p in item.prompts]
    unseen = [t for t in texts if held_out(t)]
    prompts = unseen[:: max(1, len(unseen) // args.count)][: args.count]
    kinds = tuple(map(Kind.of, args.kinds))
    if args.clock:
        return clock(kinds, args.target, prompts, args.depth)
    out = [["draft", "temperature", "depth", "figure", "mean", "low", "high", "each"]]
    for kind in kinds:
        for temperature in args.temperatures:
            found = [
                depths(kind, p, args.target, prompts, temperature, args.depth) for p in kind.places
            ]
            lines = [
                (0, "tokens a target pass", [f["tokens"][0] / f["passes"][0] for f in found]),
                *(
                    (i + 1, name, [f["kept"][i] / max(1, f[below][at]) for f in found])
                    for i in range(args.depth)
                    for name, below, at in (("here", "reached", i), ("so far", "reached", 0))
                ),
            ]
            for depth, figure, values in lines:
                cells = [f"{x:.4f}" for x in spread(values)]
                each = " ".join(f"{x:.4f}" for x in values)
                out.append([kind.name, str(temperature), str(depth), figure, *cells, each])
                print(*out[-1], sep="  ", flush=True)
    for other in kinds[1:]:
        for ratio in (True, False):
            between(out[1:], kinds[0].name, other.name, ratio)
    if args.svg:
        Path(args.svg).write_text(svg(out[1:], args.depth), "utf-8")
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as f:
            csv.writer(f, lineterminator="\n").writerows(out)


if __name__ == "__main__":
    main()
