"""Masked diffusion on the tasks of zoo:diffusion: passes, time and accuracy of every policy and cache; tables and plots.

    python benchmarks/diffusion.py                       # short answers: diffusion-policies.csv and .svg in lab/reports
    python benchmarks/diffusion.py --part long           # answers that fill a canvas: diffusion-long.csv and .svg
    python benchmarks/diffusion.py --part drawn          # short answers at temperature 1: diffusion-drawn.csv and .svg
    python benchmarks/diffusion.py --part more           # early answers, drift, different texts: diffusion-more.csv

--filter, --joint, --surer LABEL=DIR add what was trained for the model; --insertion DIR an insertion model of the same tasks;
--beside DIR an autoregressive one, which then stands in the tables (plain, with its cache; and with the diffusion model as its
draft), guides guided-diffusion and judges for svdd.

The baseline writes one token a pass, the surest first. Instances are fresh (lab/train/held_out_questions.py): held out
(SHA-1 mod 10 of at least 7) from whatever is trained or tuned, and none of the questions that the embedded models were trained
on, as far as the task has others; how many are not is said. `lost` is the difference to the baseline on the same instances, in
points; intervals are 95 %, those of differences and ratios from 2,000 resamplings. Time is CPU time of the process, one
answer after the other on one thread. Texts, passes and accuracy do not depend on the machine; time does.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from bootstrap import central_interval, drawn_again
from csv_rows import write_csv

from polydec import Engine, load
from polydec.api import LoadedModel
from polydec.core.canvas_law import Canvas
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TextEdit
from polydec.lab.bench.cache_drift import measure_cache_drift
from polydec.lab.bench.intervals import wilson_interval
from polydec.lab.train.held_out_questions import embedded_training_questions, fresh_held_out_tasks
from polydec.lab.train.tasks import (
    LONG,
    SHIPPED,
    SIX,
    VARIED,
    SyntheticTask,
    draw_task,
    is_right_task_answer,
)
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.states import approximate_exactness
from polydec.methods.diffusion.loop.types import UnmaskerView, canvas_with_edit
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker

ALL = {"block": 0}
ROOM, WIDE = 13, 48
"""Tokens of a canvas of short answers, and where lengths and values vary."""


@dataclass(frozen=True)
class Policy:
    """A row of the table. kind: rows of one kind are one line of the plot; model: another one than the benchmark's, with
    `with_` and the draft beside it; best: of so many answers the one that the draft finds likeliest, a token."""

    kind: str
    at: str
    method: str
    options: Mapping[str, Any]
    model: str | None = None
    with_: tuple[str, ...] = ()
    draft: str | None = None
    best: int = 1

    @property
    def label(self) -> str:
        return f"{self.kind} {self.at}".strip()


BASE = Policy("one a pass", "", "llada", ALL)
FREE = (
    BASE,
    *(Policy("fixed passes", str(k), "llada", {**ALL, "steps": k}) for k in (1, 2, 4)),
    *(
        Policy("threshold", str(t), "fast-dllm", {**ALL, "threshold": t})
        for t in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
    ),
    *(Policy("factor", str(f), "fast-dllm-factor", {**ALL, "factor": f}) for f in (0.5, 1.0, 1.5)),
    *(
        Policy("credit", str(t), "creditdecoding", {**ALL, "threshold": t})
        for t in (0.9, 0.95, 0.99)
    ),
    *(Policy("local", str(t), "localleap", {**ALL, "threshold": t}) for t in (0.9, 0.95, 0.99)),
    Policy("ccd", "", "ccd", ALL),
    Policy("ccd, agreement", "", "ccd", {**ALL, "agree": True}),
    *(
        Policy("prophet", str(b), "prophet", {**ALL, "early": a, "middle": b, "late": c})
        for a, b, c in ((7.5, 5.0, 2.5), (12.0, 9.0, 6.0))
    ),
    *(Policy("entropy", str(t), "dparallel", {**ALL, "threshold": t}) for t in (0.1, 0.2, 0.45)),
    *(Policy("freedave", str(d), "freedave", {**ALL, "drafts": d}) for d in (2, 4)),
    Policy("dkv-cache", "", "dkv-cache", ALL),
    Policy("dkv-cache", "and threshold 0.9", "dkv-cache", {**ALL, "threshold": 0.9}),
    Policy("dkv-cache-greedy", "", "dkv-cache-greedy", ALL),
    Policy("left to right", "", "left-to-right", ALL),
    *(
        Policy("remasking", f"{k} and {again}", "remdm", {**ALL, "steps": k, "again": again})
        for k, again in ((2, 2), (4, 2), (4, 4))
    ),
)
B32 = {"block": 32}
LONG_BASE = Policy("one a pass", "", "llada", B32)
CACHES = (
    LONG_BASE,
    Policy("fixed passes", "1", "llada", {**ALL, "steps": 1}),
    Policy("prefix cache", "", "llada", {**B32, "cache": 1}),
    Policy("dual cache", "", "llada", {**B32, "cache": 2}),
    Policy("freecache", "", "freecache", B32),
    Policy("dkv-cache", "", "dkv-cache", B32),
    Policy("dkv-cache-greedy", "", "dkv-cache-greedy", B32),
    *(Policy("threshold", str(t), "fast-dllm", {**B32, "threshold": t}) for t in (0.9, 0.99)),
    *(
        Policy("threshold, prefix cache", str(t), "fast-dllm", {**B32, "threshold": t, "cache": 1})
        for t in (0.9, 0.99)
    ),
    *(
        Policy("threshold, dual cache", str(t), "fast-dllm", {**B32, "threshold": t, "cache": 2})
        for t in (0.9, 0.99)
    ),
    Policy("threshold, freecache", "0.9", "freecache", {**B32, "threshold": 0.9}),
    Policy("threshold, dkv-cache", "0.9", "dkv-cache", {**B32, "threshold": 0.9}),
    Policy("credit, dual cache", "0.9", "creditdecoding", {**B32, "threshold": 0.9, "cache": 2}),
    Policy("local, dual cache", "0.9", "localleap", {**B32, "threshold": 0.9, "cache": 2}),
)
OWN = (
    Policy("one a pass", "", "block-diffusion", {"threshold": 2}),
    *(
        Policy("block-diffusion", str(t), "block-diffusion", {"threshold": t})
        for t in (0.5, 0.7, 0.9, 0.99)
    ),
    *(
        Policy("fast-dllm-v2", str(t), "fast-dllm-v2", {"threshold": t, "block": 4})
        for t in (0.5, 0.7, 0.9, 0.99)
    ),
)
"""Of a block-causal model."""
DRAWN = (
    Policy("random order", "", "mdlm", {}),
    *(Policy("random order, passes", str(k), "mdlm", {"steps": k}) for k in (7, 4)),
    Policy("lowest entropy", "", "dream", ALL),
    *(Policy("lowest entropy, passes", str(k), "dream", {**ALL, "steps": k}) for k in (7, 4)),
    *(Policy("threshold", str(t), "fast-dllm", {**ALL, "threshold": t}) for t in (0.7, 0.9)),
)
"""At temperature 1."""


@dataclass(frozen=True)
class Answer:
    """ms: of CPU time."""

    right: bool
    passes: int
    positions: int
    ms: float
    text: str


def answers(
    policy: Policy,
    model: str,
    tasks: Sequence[tuple[str, SyntheticTask]],
    room: int,
    heat: float = 0.0,
) -> Iterator[Answer]:
    """One answer after the other, at this temperature. An answer that goes on is right where it fills its room."""
    judge = load(policy.draft, draft=None, threads=1) if policy.best > 1 and policy.draft else None
    lm = load(
        policy.model or model,
        draft=None if judge else policy.draft,
        trained=policy.with_,
        threads=1,
    )
    engine = Engine(lm)

    def answer(task: SyntheticTask, seed: int) -> tuple[Any, Any]:
        asked = engine.submit(
            task.question,
            method=policy.method,
            options=policy.options,
            max_tokens=room,
            n=policy.best,
            seed=seed,
            sampling=lm.sampling_with(temperature=heat),
        )
        done = engine.run([asked])[0]
        worths = [0.0 if judge is None else worth(judge, task, c.token_ids) for c in done.choices]
        return done, done.choices[max(range(len(worths)), key=worths.__getitem__)]

    answer(tasks[0][1], 0)  # what a first answer sets up is not timed
    for i, (name, task) in enumerate(tasks):
        began = time.process_time()
        done, taken = answer(task, i)
        ms = 1000 * (time.process_time() - began)
        good = is_right_task_answer(name, task.question, taken.text) and (
            name not in LONG or len(taken.token_ids) == room
        )
        yield Answer(
            good, done.metrics["target_passes"], done.metrics["positions_fed"], ms, taken.text
        )


def worth(judge: LoadedModel, task: SyntheticTask, answer: Sequence[int]) -> float:
    """An answer's mean log-probability a token under an autoregressive model."""

    async def scored() -> float:
        prompt = judge.encode_prompt(task.question)
        session = judge.checkpoint.lm.open_session(prompt)
        await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        scores = await session.score_draft(
            Draft.chain_draft(prompt[-1], answer[:-1]), ScoreRequest()
        )
        session.close()
        return sum(scores.token_logprobs(i, (x,))[0] for i, x in enumerate(answer)) / max(
            len(answer), 1
        )

    return run_coroutines([scored()])[0]


def again(column: Sequence[float]) -> np.ndarray:
    """Sums over drawings of as many instances, the same ones for every column of a length."""
    return drawn_again(np.asarray(column, float)).sum(1)


def table(
    model: str,
    tasks: Sequence[tuple[str, SyntheticTask]],
    policies: Sequence[Policy],
    room: int,
    heat: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """A row for each policy and task, and one for all tasks together."""
    base: list[Answer] | None = None
    for policy in policies:
        got = list(answers(policy, model, tasks, room, heat))
        base = base or got
        for part in (*dict.fromkeys(name for name, _ in tasks), "all"):
            at = [i for i, (name, _) in enumerate(tasks) if part in (name, "all")]
            yield {
                "policy": policy.label,
                "kind": policy.kind,
                "task": part,
                **compared([base[i] for i in at], [got[i] for i in at]),
            }
        print(f"  {policy.label}", flush=True)


def compared(base: Sequence[Answer], got: Sequence[Answer]) -> dict[str, Any]:
    """What a table says of some instances."""
    n, count = len(got), sum(a.right for a in got)
    low, high = wilson_interval(count, n)

    worse = [float(x.right) - float(y.right) for x, y in zip(base, got, strict=True)]
    lost_low, lost_high = central_interval(100 * again(worse) / n)
    passes, before = [x.passes for x in got], [x.passes for x in base]
    saved_low, saved_high = central_interval(again(before) / again(passes))
    saved, faster = sum(before) / sum(passes), sum(x.ms for x in base) / sum(x.ms for x in got)
    return {
        "n": n,
        "accuracy": f"{100 * count / n:.1f}",
        "low": f"{100 * low:.1f}",
        "high": f"{100 * high:.1f}",
        "passes": f"{sum(a.passes for a in got) / n:.2f}",
        "passes_saved": f"{saved:.2f}",
        "saved_low": f"{saved_low:.2f}",
        "saved_high": f"{saved_high:.2f}",
        "positions": f"{sum(a.positions for a in got) / n:.1f}",
        "ms": f"{sum(a.ms for a in got) / n:.2f}",
        "time_saved": f"{faster:.2f}",
        "lost": f"{100 * sum(worse) / n:.1f}",
        "lost_low": f"{lost_low:.1f}",
        "lost_high": f"{lost_high:.1f}",
        "same": f"{100 * sum(a.text == b.text for a, b in zip(base, got, strict=True)) / n:.1f}",
    }


def at_equal(rows: Sequence[Mapping[str, Any]], plain: str = "threshold") -> Iterator[str]:
    """Of other policies the passes saved beside the plain threshold that saves most and is right as often at least."""
    mine = [r for r in rows if r["task"] == "all"]
    for r in mine:
        fair = [
            t for t in mine if t["kind"] == plain and float(t["accuracy"]) >= float(r["accuracy"])
        ]
        if r["kind"] in ("ccd", "ccd, agreement", "credit", "local") and fair:
            best = max(fair, key=lambda t: float(t["passes_saved"]))
            yield (
                f"{r['policy']}: {r['passes_saved']} x [{r['saved_low']}, {r['saved_high']}] at {r['accuracy']} %; "
                f"{best['policy']}: {best['passes_saved']} x [{best['saved_low']}, {best['saved_high']}] at "
                f"{best['accuracy']} %"
            )


@dataclass(frozen=True)
class Watched:
    """One a pass, the surest first; seen: after each pass the canvas with the likeliest token in each gap."""

    base: ConfidenceUnmasker
    seen: list[Canvas] = field(default_factory=list[Canvas])
    everywhere: ClassVar[bool] = True
    exactness = approximate_exactness

    def start_state(self, canvas: Canvas) -> Any:
        return self.base.start_state(canvas)

    def enter_block(self, state: Any, count: int) -> Any:
        return self.base.enter_block(state, count)

    def choose_edit(self, state: Any, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Any]:
        likeliest = look.logw_RV.argmax(-1).tolist()
        self.seen.append(
            canvas_with_edit(look.canvas, look.fill_edit(range(len(look.rows)), likeliest))
        )
        return self.base.choose_edit(state, look, rng)


def early(
    lm: LoadedModel, tasks: Sequence[tuple[str, SyntheticTask]], room: int
) -> Iterator[dict[str, Any]]:
    """How often the answer that the model would give at once is right after a part of the passes (Prophet's premise), and
    whether it is then the final one."""
    parts, hits = (0.0, 0.25, 0.5, 0.75, 1.0), dict[float, list[tuple[bool, bool]]]()
    for name, task in tasks:
        ids, watched = lm.encode_prompt(task.question), Watched(ConfidenceUnmasker())
        run_coroutines(
            [
                answer_one(
                    DenoisingDecoder(lm.checkpoint.lm, watched, FullRefresh()), Request(ids, room)
                )
            ]
        )
        texts = [said(lm, canvas[len(ids) :]) for canvas in watched.seen]
        for part in parts:
            text = texts[min(int(part * len(texts)), len(texts) - 1)]
            hits.setdefault(part, []).append(
                (is_right_task_answer(name, task.question, text), text == texts[-1])
            )
    for part, some in hits.items():
        for what, i in (("right", 0), ("final", 1)):
            k = sum(x[i] for x in some)
            low, high = wilson_interval(k, len(some))
            yield {
                "what": f"answer {what} after {part:.0%} of the passes",
                "which": "",
                "value": f"{100 * k / len(some):.1f}",
                "low": f"{100 * low:.1f}",
                "high": f"{100 * high:.1f}",
                "n": len(some),
            }


def said(lm: LoadedModel, tokens: Sequence[int | None]) -> str:
    """The text up to the first end."""
    ends = lm.checkpoint.lm.vocab.eos
    first = next((i for i, x in enumerate(tokens) if x in ends), len(tokens))
    return lm.checkpoint.text.decode([x for x in tokens[:first] if x is not None])


def drifts(
    lm: LoadedModel,
    tasks: Sequence[tuple[str, SyntheticTask]],
    policies: Sequence[Policy],
    room: int,
) -> Iterator[dict[str, Any]]:
    """Of each cache the mean divergence of its laws from those without one, over some answers."""
    for policy in policies:
        some = [
            measure_cache_drift(
                lm,
                t.question,
                policy.method,
                policy.options,
                sampling=lm.sampling_with(),
                max_tokens=room,
            )
            for _, t in tasks
        ]
        rows = sum(d.rows for d in some)
        yield {
            "what": "drift, nats a law",
            "which": policy.label,
            "value": f"{sum(d.nats * d.rows for d in some) / rows:.5f}",
            "low": "",
            "high": f"{max(d.most for d in some):.3f}",
            "n": rows,
        }
        yield {
            "what": "drift, % other likeliest token",
            "which": policy.label,
            "value": f"{100 * sum(d.moved * d.rows for d in some) / rows:.2f}",
            "low": "",
            "high": "",
            "n": rows,
        }


def different(model: str, policies: Sequence[Policy]) -> Iterator[dict[str, Any]]:
    """How many different texts 50 different prompts give."""
    prompts = [
        ("slots" if i % 2 else "copy", draw_task("slots" if i % 2 else "copy", 99, i))
        for i in range(50)
    ]
    assert len({t.question for _, t in prompts}) == 50
    for policy in policies:
        texts = {a.text for a in answers(policy, model, prompts, ROOM)}
        yield {
            "what": "different texts of 50 prompts",
            "which": policy.label,
            "value": str(len(texts)),
            "low": "",
            "high": "",
            "n": 50,
        }


def plot(rows: Sequence[Mapping[str, Any]], what: str, title: str) -> str:
    """Accuracy against what was saved (a logarithmic scale), all tasks together, as an SVG: a line for each kind of policy, and
    its name at the right, the surest at their right ends first."""
    kinds = dict[str, list[tuple[float, float, float, float]]]()
    for r in rows:
        if r["task"] == "all":
            kinds.setdefault(r["kind"], []).append(
                tuple(float(r[k]) for k in (what, "accuracy", "low", "high"))
            )  # type: ignore
    points = [p for some in kinds.values() for p in some]
    first = min(p[0] for p in points)
    most = max(2 * first, *(p[0] for p in points))  # one point alone has a scale as well
    least, top_value = min(p[2] for p in points), 100.0
    least = 10 * int(least // 10)
    wide, high, left, top, margin = 1020, 520, 60, 30, 290

    def x(v):
        return (
            left + 12 + (wide - left - margin - 24) * math.log(v / first) / math.log(most / first)
        )

    y = lambda v: top + (high - top - 50) * (1 - (v - least) / (top_value - least))  # noqa: E731
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for v in range(least, 101, 10):
        out.append(
            f'<path d="M{left} {y(v):.1f}H{wide - margin}" stroke="#ddd"/>'
            f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v}</text>'
        )
    for v in (
        v for v in (0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 7, 10, 20, 30, 50, 70, 100) if first <= v <= most
    ):
        out.append(f'<text x="{x(v):.1f}" y="{high - 30}" text-anchor="middle">{v}</text>')
    out.append(
        f'<text x="{(left + wide - margin) / 2}" y="{high - 8}" text-anchor="middle">{title}</text>'
        f'<text x="14" y="{high / 2}" transform="rotate(-90 14 {high / 2})" text-anchor="middle">'
        "right answers (%)</text>"
    )
    order = sorted(kinds, key=lambda k: -max(kinds[k])[1])
    step = min(22.0, (high - top - 40) / len(order))
    for i, kind in enumerate(order):
        some, hue = sorted(kinds[kind]), round(137.5 * i) % 360  # neighbours look different
        colour, dash = (
            f"hsl({hue} 65% {(38, 52)[i % 2]}%)",
            ("", ' stroke-dasharray="5 3"')[i // 2 % 2],
        )
        line = " ".join(f"{'ML'[j > 0]}{x(p[0]):.1f} {y(p[1]):.1f}" for j, p in enumerate(some))
        out.append(f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
        out += [
            f'<path d="M{x(p[0]):.1f} {y(p[2]):.1f}V{y(p[3]):.1f}" stroke="{colour}" opacity=".3"/>'
            f'<circle cx="{x(p[0]):.1f}" cy="{y(p[1]):.1f}" r="3.5" fill="{colour}"/>'
            for p in some
        ]
        row = top + 4 + step * i
        out.append(
            f'<path d="M{wide - margin + 14} {row:.1f}h22" stroke="{colour}" stroke-width="2"{dash}/>'
            f'<circle cx="{wide - margin + 25}" cy="{row:.1f}" r="3.5" fill="{colour}"/>'
            f'<text x="{wide - margin + 44}" y="{row + 4:.1f}">{kind}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The lines of a table in Markdown, all tasks together; and the tasks of the first two policies."""
    print(
        "| method | right | passes | saved | points lost | ms | time saved | same text |\n|---|---|---|---|---|---|---|---|"
    )
    for r in rows:
        if r["task"] == "all":
            print(
                f"| {r['policy']} | {r['accuracy']} % [{r['low']}, {r['high']}] | {r['passes']} | {r['passes_saved']} x | "
                f"{r['lost']} [{r['lost_low']}, {r['lost_high']}] | {r['ms']} | {r['time_saved']} x | {r['same']} % |"
            )
    first = list(dict.fromkeys(r["policy"] for r in rows))[:2]
    print(f"\n| task | {' | '.join(first)} |\n|---|---|---|")
    for task in dict.fromkeys(r["task"] for r in rows):
        cells = [
            next(r["accuracy"] for r in rows if (r["policy"], r["task"]) == (p, task))
            for p in first
        ]
        print(f"| {task} | {' % | '.join(cells)} % |")


def more_drawn(layer: str | None, judge: str | None) -> Iterator[Policy]:
    """At temperature 1, with a joint sampler's layer and with an autoregressive model."""
    if layer:
        yield from (
            Policy("adjust", str(k), "adjust", {"count": k}, with_=(layer,)) for k in (2, 4)
        )
    if judge:
        yield from (Policy("svdd", str(k), "svdd", {"tries": k}, draft=judge) for k in (2, 4, 8))
        yield Policy("svdd 8, passes", "4", "svdd", {"tries": 8, "steps": 4}, draft=judge)
        yield from (Policy("best of", str(k), "mdlm", {}, draft=judge, best=k) for k in (2, 4, 8))


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--part", choices=("policies", "long", "drawn", "more"), default="policies")
    p.add_argument("--model", default="zoo:diffusion")
    p.add_argument(
        "--each", type=int, help="instances of each task (default: 30 short ones, 8 long ones)"
    )
    p.add_argument(
        "--tasks", help="of these, separated by commas (default: all short ones, or all long ones)"
    )
    p.add_argument(
        "--only",
        help="labels of policies, separated by semicolons, beside the baseline (default: all)",
    )
    p.add_argument("--room", type=int, default=240, help="tokens of a long answer")
    p.add_argument("--seed", type=int, default=77)
    p.add_argument(
        "--varied", action="store_true", help="lists of 3 to 9 digits and letters, other names"
    )
    p.add_argument(
        "--filter", help="directory of a filter: learn2pd, with and without end-of-text prediction"
    )
    p.add_argument("--joint", help="directory of a joint sampler's layer: adjust")
    p.add_argument(
        "--surer",
        action="append",
        default=[],
        help="LABEL=DIRECTORY of what train dparallel made (repeatable)",
    )
    p.add_argument("--beside", help="an autoregressive model of the same tasks")
    p.add_argument("--insertion", help="an insertion model of the same tasks (short answers only)")
    p.add_argument(
        "--out",
        type=Path,
        help="where the tables go, without an ending (default: lab/reports/diffusion-PART)",
    )
    a = p.parse_args()
    lm, out = load(a.model, threads=1), a.out or Path(f"lab/reports/diffusion-{a.part}")
    own, of = bool(lm.checkpoint.lm.block), VARIED if a.varied else SIX
    room = WIDE if a.varied else ROOM
    short, long = OWN if own else FREE, OWN if own else CACHES
    beside = (
        ()
        if a.beside is None
        else (
            Policy("autoregressive, plain", "", "plain", {}, model=a.beside),
            Policy("autoregressive, diffuspec", "", "diffuspec", {}, a.beside, (), a.model),
        )
    )
    if a.part == "more":
        tasks = [
            (name, t)
            for name in SHIPPED
            for t in fresh_held_out_tasks(name, a.seed, a.each or 30, of)
        ]
        far = [(name, t) for name in LONG for t in fresh_held_out_tasks(name, a.seed, 2, of)]
        rows = [
            *([] if own else early(lm, tasks, room)),
            *drifts(lm, far, long[1:], a.room),
            *different(a.model, (*short, *(() if own else CACHES[1:]))),
        ]
        write_csv(out.with_suffix(".csv"), rows)
        for r in rows:
            print(
                f"{r['what']:42} {r['which']:30} {r['value']:>8} {r['low']}-{r['high']}  n = {r['n']}"
            )
        return
    names = a.tasks.split(",") if a.tasks else LONG if a.part == "long" else SHIPPED
    tasks = [
        (name, t)
        for name in names
        for t in fresh_held_out_tasks(name, a.seed, a.each or (8 if a.part == "long" else 30), of)
    ]
    for name in names:
        asked = [t.question for x, t in tasks if x == name]
        if known := sum(q in embedded_training_questions(name) for q in asked):
            print(f"{name}: the embedded models were trained on {known} of these {len(asked)}")
    if a.part == "drawn":
        policies = (*DRAWN, *more_drawn(a.joint, a.beside))
    elif a.part == "long":
        policies = (*long, *beside)
    else:
        more = list[Policy]()
        if a.filter:
            more += [
                Policy(label, str(t), "learn2pd", {"threshold": t, **options}, with_=(a.filter,))
                for label, options in (
                    ("learn2pd", {}),
                    ("learn2pd, two spare gaps", {"spare": 2}),
                    ("learn2pd without predicted ends", {"ending": False}),
                )
                for t in (0.9, 0.96)
            ]
        if a.joint:
            more += [
                Policy("adjust", str(k), "adjust", {"count": k}, with_=(a.joint,)) for k in (2, 4)
            ]
        for label, _, where in (one.partition("=") for one in a.surer):
            more += [
                Policy(f"{label}, one a pass", "", "llada", ALL, model=where),
                *(
                    Policy(label, str(t), "dparallel", {**ALL, "threshold": t}, model=where)
                    for t in (0.1, 0.2, 0.45)
                ),
            ]
        if a.insertion:
            more += [
                Policy(
                    "insertion",
                    f"{k} a pass" if k > 1 else "",
                    "insertion-language-models",
                    {"count": k},
                    model=a.insertion,
                )
                for k in (1, 2)
            ]
        if a.beside and not own:
            more.append(Policy("guided-diffusion", "", "guided-diffusion", ALL, draft=a.beside))
        policies = (*short, *more, *beside)
    if a.only:
        policies = (policies[0], *(x for x in policies[1:] if x.label in a.only.split(";")))
    rows = list(
        table(
            a.model, tasks, policies, a.room if a.part == "long" else room, float(a.part == "drawn")
        )
    )
    write_csv(out.with_suffix(".csv"), rows)
    long_ones = ("time_saved", "CPU time saved (times)")
    what, title = long_ones if a.part == "long" else ("passes_saved", "passes saved (times)")
    out.with_suffix(".svg").write_text(plot(rows, what, title), "utf-8")
    show(rows)
    print(*at_equal(rows), sep="\n")


if __name__ == "__main__":
    main()
