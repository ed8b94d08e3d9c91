"""Acceptance by what a draft model was trained on, by its size, and the width of a draft that pays by batch (Scylla).

    python benchmarks/scaling.py --out runs/scaling --csv lab/reports/scaling.csv --svg lab/reports/scaling.svg

Draft models of one, two and four layers learn the laws of the target on running text that nobody sees twice: each number of
tokens is a training of its own with a whole schedule, so that none is looked at in the middle of one. Then each drafts chains
for held-out texts (24 of each kind, cut at 64 tokens, answers of 48), greedy and drawn. What is there already is not trained
again. Trees of growing width are grown by the best of them, and rounds of so many rows are timed at growing batches. Seconds
are this process's own, on one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from csv_rows import write_csv

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.lab.bench.scaling import (
    LEAST,
    ScalingPoint,
    doubling_slope,
    extrapolation_error,
    fit_scaling_law,
    is_near_depth_limit,
)
from polydec.lab.train.data import data_root, split_documents
from polydec.lab.train.lm import PRESETS, LMSpec, train_lm
from polydec.lab.train.loop import TrainingSchedule
from polydec.lab.train.network import LlamaShape
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.widths import best_width
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions import checkpoint
from polydec.models.sessions.lm import CausalLaw

LAWS = {"greedy": GreedyRule(), "T = 1": TemperatureRule(1.0)}
DEPTH = 5
"""Tokens of a chain, and levels of a tree."""
WIDTHS = (0, 1, 2, 4, 8, 16, 32)
"""Tokens of a draft whose rounds are timed."""
BATCHES = (1, 2, 4, 8, 16, 32)
STEP = PRESETS["tiny"].rows * PRESETS["tiny"].length
"""Tokens of a step of training."""
MEGABYTES = (3.0, 2.4, 1.8)
"""Of prose, code and dialogue: more tokens than any training here reads."""


@dataclass(frozen=True)
class Grid:
    """out: where draft models are kept; layers and steps: of each; width: of all."""

    out: Path
    target: str
    layers: Sequence[int]
    steps: Sequence[int]
    width: int

    def trained(self, layers: int, steps: int) -> tuple[Path, dict[str, Any]]:
        """A draft model and what its training says."""
        where = self.out / f"layers-{layers}-steps-{steps}"
        if not (where / "training.json").exists():
            shape = LlamaShape(
                4096, width=self.width, layers=layers, heads=3, kv_heads=1, inner=2 * self.width
            )
            train_lm(
                LMSpec(
                    str(where),
                    teacher=self.target,
                    shape=shape,
                    train_mb=MEGABYTES,
                    held_kb=20.0,
                    long=0.0,
                    schedule=TrainingSchedule(steps, 6e-3, muon=0.02, save_every=1000),
                )
            )
        return where, json.loads((where / "training.json").read_text())


def texts(point: Any, count: int = 24) -> list[tuple[int, ...]]:
    """Beginnings of held-out documents."""
    held = {
        kind: split_documents(data_root(), kind, 0, 400_000).unseen
        for kind in ("prose", "code", "dialogue")
    }
    long = (
        [ids for d in some if len(ids := point.text.encode(d[:800])) > 64] for some in held.values()
    )
    return [tuple(ids[:64]) for some in long for ids in some[:count]]


def accepted(
    target: CausalLaw, draft: CausalLaw, law: str, some: Sequence[tuple[int, ...]]
) -> float:
    """Drafted tokens that a pass accepts, a mean over passes."""
    kit = Kit(ShapedTarget(target, LAWS[law]), ShapedTarget(draft, LAWS[law]))
    decoder, _ = registry.build("draft-model", kit, {"depth": str(DEPTH)})
    done = run_coroutines(
        [answer_one(decoder, Request(t, max_tokens=48, seed=i)) for i, t in enumerate(some)]
    )
    return sum(len(r.token_ids) for r in done) / sum(r.stats.passes for r in done) - 1


def written(
    target: CausalLaw, draft: CausalLaw, some: Sequence[tuple[int, ...]]
) -> dict[int, float]:
    """Tokens a pass of trees of each width, greedy."""
    out = dict[int, float]()
    for nodes in WIDTHS:
        drafter = ModelDrafter(ShapedTarget(draft, GreedyRule()), BestFirstTree(4))
        decoder = SpeculativeDecoder(
            ShapedTarget(target, GreedyRule()),
            drafter,
            MatchVerifier(),
            FixedPolicy(min(DEPTH, nodes), nodes),
        )
        done = run_coroutines([answer_one(decoder, Request(t, max_tokens=48)) for t in some])
        out[nodes] = sum(len(r.token_ids) for r in done) / sum(r.stats.passes for r in done)
    return out


def seconds(model: CausalLaw, batch: int, rows: int, text: Sequence[int]) -> float:
    """Of one pass over so many rows of each of so many sequences: the least of seven."""
    caches, want, times = [], ScoreRequest(law=RowDetail.ARGMAX), list[float]()
    for _ in range(batch):
        cache = model.network.new_cache()
        cache.stage_slots(range(-1, len(text) - 1))
        cache.commit_path(range(len(text)))
        model.network.forward(
            [NetworkQuery(cache, 0, tuple(text), (), ScoreRequest(law=RowDetail.NOTHING))]
        )
        caches.append(cache)
    for _ in range(7):
        queries = [
            NetworkQuery(
                c, c.stage_slots(range(-1, rows - 1)), tuple(text[:rows]), range(rows), want
            )
            for c in caches
        ]
        start = time.process_time()
        model.network.forward(queries)
        times.append(time.process_time() - start)
        for c in caches:
            c.commit_tokens(())
    return min(times)


def widths(
    target: CausalLaw, draft: CausalLaw, of: Mapping[int, float], text: Sequence[int]
) -> list[dict[str, Any]]:
    """At each batch the width that writes most tokens a second. A draft of M tokens takes as many passes of the draft model as
    it has levels, each of at most four rows."""
    out = list[dict[str, Any]]()
    for batch in BATCHES:
        checks = {m: seconds(target, batch, m + 1, text) for m in WIDTHS}
        drafts = {m: min(DEPTH, m) * seconds(draft, batch, min(4, max(m, 1)), text) for m in WIDTHS}
        for free in (False, True):
            cost = {m: checks[m] + (0.0 if free else drafts[m]) for m in WIDTHS}
            best = best_width(of, cost.__getitem__)
            out.append(
                {
                    "batch": batch,
                    "draft": "free" if free else "timed",
                    "width": best,
                    "tokens a second": round(batch * of[best] / cost[best]),
                    "plain": round(batch / cost[0]),
                    "pass of 33 rows in passes of 1": round(checks[32] / checks[0], 2),
                }
            )
    return out


def svg(points: Mapping[str, Sequence[ScalingPoint]], laws: Mapping[str, Any]) -> str:
    """Accepted tokens over training tokens; a line for each size, dots measured, lines fitted."""
    wide, high, colours = 320, 260, ("#1b9e77", "#d95f02", "#7570b3", "#e7298a")
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide * len(points)}" height="{high}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{wide * len(points)}" height="{high}" fill="white"/>',
    ]
    for at, (name, some) in enumerate(points.items()):
        tokens, sizes = sorted({p.tokens for p in some}), sorted({p.capacity for p in some})
        top = max(p.accepted for p in some) * 1.15
        left, width, bottom, tall = wide * at + 44, wide - 64, high - 40, high - 84

        def x(
            t: float, tokens: Sequence[float] = tokens, left: int = left, width: int = width
        ) -> float:
            return left + width * tokens.index(t) / (len(tokens) - 1)

        def y(a: float, top: float = top, bottom: int = bottom, tall: int = tall) -> float:
            return bottom - tall * a / top

        out.append(
            f'<text x="{left}" y="16" font-weight="bold">Accepted tokens a pass, {name}</text>'
        )
        out += [
            f'<text x="{x(t):.0f}" y="{bottom + 16}" text-anchor="middle">{t / 1e6:.2f} M</text>'
            for t in tokens
        ]
        out += [
            f'<text x="{left - 6}" y="{y(a) + 4:.0f}" text-anchor="end">{a:.1f}</text>'
            f'<line x1="{left}" x2="{left + width}" y1="{y(a):.1f}" y2="{y(a):.1f}" stroke="#ddd"/>'
            for a in [k / 5 for k in range(int(top * 5) + 1)][:: max(1, int(top * 5) // 5)]
        ]
        for n, colour in zip(sizes, colours, strict=False):
            line = " ".join(
                f"{x(t):.1f},{y(laws[name].accepted_tokens(ScalingPoint(t, n, 0.0))):.1f}"
                for t in tokens
            )
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
            out += [
                f'<circle cx="{x(p.tokens):.1f}" cy="{y(p.accepted):.1f}" r="3.5" fill="{colour}"/>'
                for p in some
                if p.capacity == n
            ]
            out.append(
                f'<text x="{left + 4}" y="{32 + 13 * sizes.index(n)}" fill="{colour}">{n:g} layer{"s" * (n > 1)}</text>'
            )
        out.append(
            f'<text x="{left + width / 2}" y="{high - 6}" text-anchor="middle">tokens of training</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path, help="where draft models are kept")
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--layers", default="1,2,4")
    parser.add_argument("--steps", default="8,16,32,64,128", help=f"of {STEP} tokens")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--csv", help="file to write")
    parser.add_argument("--svg", help="picture to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes, lengths = ([int(n) for n in some.split(",")] for some in (args.layers, args.steps))
    grid = Grid(args.out, args.target, sizes, lengths, args.width)
    if (
        len(grid.layers) < 2
        or len(grid.steps) < 3
        or len(grid.layers) * (len(grid.steps) - 1) < LEAST
    ):
        parser.error(
            f"layers is {args.layers}, steps {args.steps}: two sizes, three lengths and {LEAST} trainings beside the "
            "longest ones are needed at least"
        )
    point, rows, best = (
        checkpoint.load_bundle(args.target, threads=1),
        list[dict[str, Any]](),
        (0.0, Path()),
    )
    some, points = texts(point), {law: list[ScalingPoint]() for law in LAWS}
    for layers in grid.layers:
        for steps in grid.steps:
            where, said = grid.trained(layers, steps)
            draft = checkpoint.load_bundle(str(where), threads=1).lm
            for law in LAWS:
                mean = accepted(point.lm, draft, law, some)
                points[law].append(ScalingPoint(steps * STEP, layers, mean))
                rows.append(
                    {
                        "law": law,
                        "layers": layers,
                        "tokens": steps * STEP,
                        "accepted": round(mean, 4),
                        "near the end": is_near_depth_limit(mean, DEPTH),
                        "parameters": said["parameters"],
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
                best = max(best, (mean, where))
    laws = {law: fit_scaling_law(of) for law, of in points.items()}
    for law, of in points.items():
        known = laws[law]
        print(
            json.dumps(
                {
                    "law": law,
                    "factors": known.factors,
                    "errors": known.errors,
                    "explained": known.explained,
                    "left out": known.left_out,
                    "beyond": extrapolation_error(of),
                    "by layers": {
                        n: doubling_slope([(p.tokens, p.accepted) for p in of if p.capacity == n])
                        for n in grid.layers
                    },
                }
            ),
            flush=True,
        )
    draft = checkpoint.load_bundle(str(best[1]), threads=1).lm
    of = written(point.lm, draft, some[::3])
    print(
        json.dumps({"tokens a pass by width": {m: round(v, 3) for m, v in of.items()}}), flush=True
    )
    wide = widths(point.lm, draft, of, some[0])
    for row in wide:
        print(json.dumps(row), flush=True)
    for how in ("timed", "free"):
        print(
            how,
            "width by a doubling of the batch",
            doubling_slope([(r["batch"], r["width"]) for r in wide if r["draft"] == how]),
        )
    if args.csv:
        write_csv(args.csv, rows)
    if args.svg:
        Path(args.svg).write_text(svg(points, laws))


if __name__ == "__main__":
    main()
