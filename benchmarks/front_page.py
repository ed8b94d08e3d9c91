"""Rows of the front page's table "Which method when", tried as they are written, on held-out prompts and in turns.

    python benchmarks/front_page.py many --csv lab/reports/front-page.csv      # eight prompts: at once, or one after another
    python benchmarks/front_page.py better --csv lab/reports/front-page.csv    # sums: votes beside greedy answers
    python benchmarks/front_page.py trained --csv lab/reports/front-page.csv   # the drafter that travels along, and others
    python benchmarks/front_page.py depths --csv lab/reports/front-page.csv    # who chooses how deep a draft model drafts
    python benchmarks/front_page.py company --csv lab/reports/company.csv      # eight and sixteen prompts at once
    python benchmarks/front_page.py long --csv lab/reports/front-page-long.csv # files to edit, passages to sum up or to ask
    python benchmarks/front_page.py served --csv lab/reports/front-page-served.csv    # two methods: one engine, or one each

A row's sides take turns on each task (eight prompts, one question, one prompt), in an order that rotates: a busy minute hits
all of them. Speed is work over seconds: tokens for `many`, `long` and `served` (each side feeds the prompts again, and it
counts), tokens of decoding alone for `trained`, `depths` and `company`, questions for `better`. It is told over another side's,
all tasks together, with a 95 % interval of a bootstrap over tasks, and the median over tasks. Right answers are told in points
over the other side's, on the same questions in the same draws. Rows of the file that were there are replaced.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from bootstrap import central_interval, drawn_again, speed_over
from csv_rows import merge_csv
from speculation import batches, workloads

from polydec import api
from polydec.core.trace import EditedEvent, TraceEvent
from polydec.lab.bench.measure import BenchTask, MethodSetting, summarise_run
from polydec.lab.commands.suites import evenly_spaced_rows, read_suite_rows
from polydec.lab.train.data import data_root, held_out
from polydec.methods.economics.costs import PassCosts
from polydec.request.machine import describe_machine, relative_cpu_load
from polydec.request.profile import measure_pass_profile

ALONE = ", one after another"
EIGHT = ", eight at once"
SIXTEEN = ", sixteen at once"
LONG_KINDS = ("code edit", "rag", "summarization")
"""Workloads whose prompts are some hundred tokens long, and whose answers hold much of them."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class Side:
    """One way to answer.

    Attributes:
        label: How the table calls it.
        method: Its method with options.
        at_once: How many requests run at once.
        temperature: At which it draws.
        further_methods: A task's requests are shared out evenly among the method and these, in this order.
    """

    label: str
    method: MethodSetting
    at_once: int = 1
    temperature: float = 0.0
    further_methods: tuple[MethodSetting, ...] = ()

    def request_method(self, at: int, count: int) -> MethodSetting:
        """Method of one request of a task.

        Args:
            at: Its place among the task's requests.
            count: How many the task has.
        """
        methods = (self.method, *self.further_methods)
        return methods[at * len(methods) // count]


@dataclass(frozen=True)
class AnsweredPart:
    """Requests of one task that ran at once.

    Attributes:
        whole: Seconds from their submission to the last token.
        decoding: Seconds from the moment when each had its first token.
        later: Tokens behind that moment.
        positions: That all models were fed.
        passes: Of the model.
        right: How many answers are right.
        ids: The answers.
    """

    whole: float
    decoding: float
    later: int
    positions: int
    passes: int
    right: int
    ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Turn:
    """What one side did on one task.

    Attributes:
        work: Tokens that were written, or questions that were answered.
        seconds: What they took.
        positions: That all models were fed, those of thrown away texts among them.
        passes: Passes of the model.
        right: How many answers are right.
        ids: The answers.
    """

    work: int
    seconds: float
    positions: int
    passes: int
    right: int
    ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TriedRow:
    """A row of the front page's table.

    Attributes:
        sides: What is measured; the first one is what others are compared with.
        tasks: Makes the tasks from the data's folder and the command's arguments.
        tokens: Of an answer, at most.
        count: What a turn's work and seconds are.
        trained: What is loaded beside the model.
        bases: Labels of the sides that others are compared with.
    """

    sides: tuple[Side, ...]
    tasks: Callable[[Path, argparse.Namespace], list[BenchTask]]
    tokens: int
    count: Callable[[Sequence[AnsweredPart]], tuple[int, float]]
    trained: tuple[str, ...] = ()
    bases: tuple[str, ...] = field(default=())


def whole_texts(parts: Sequence[AnsweredPart]) -> tuple[int, float]:
    """All tokens, and all seconds, those of the prompts too."""
    return sum(len(ids) for part in parts for ids in part.ids), sum(part.whole for part in parts)


def decoding_alone(parts: Sequence[AnsweredPart]) -> tuple[int, float]:
    """Tokens behind the first ones, and the seconds behind these."""
    return sum(part.later for part in parts), sum(part.decoding for part in parts)


def questions_answered(parts: Sequence[AnsweredPart]) -> tuple[int, float]:
    """Questions, and all seconds."""
    return sum(len(part.ids) for part in parts), sum(part.whole for part in parts)


def prompts_of_workloads(root: Path, given: argparse.Namespace) -> list[BenchTask]:
    """Held-out prompts of every workload, so many in each task as run together."""
    size = max(side.at_once for side in ROWS[given.row].sides)
    tasks = batches(workloads(root, given.each * size, given.seed), size)
    return [
        BenchTask(task[0].workload, tuple(row.prompt for row in task))
        for task in tasks
        if len(task) == size
    ]


def long_prompts(root: Path, given: argparse.Namespace) -> list[BenchTask]:
    """Held-out prompts that an answer copies from, one a task."""
    return [task for task in prompts_of_workloads(root, given) if task.workload in LONG_KINDS]


def sums_in_words(root: Path, given: argparse.Namespace) -> list[BenchTask]:
    """Held-out problems of SVAMP, at even distances, which ask for an end that a vote can compare."""
    rows = [row for row in read_suite_rows("svamp", root, sys.maxsize) if held_out(str(row.prompt))]
    tasks = list[BenchTask]()
    for row in evenly_spaced_rows(rows, given.questions):
        # The suite's own wish for an end is replaced.
        asked, _, _ = str(row.prompt).rpartition("\n")
        wanted = None if isinstance(row.answer, str) else row.answer
        prompt = f"{asked}\nEnd with a line: The answer is NUMBER."
        tasks.append(BenchTask("svamp", (prompt,), wanted=(wanted,)))
    return tasks


def side_of(
    label: str, name: str, *, options: Mapping[str, str] | None = None, **more: Any
) -> Side:
    return Side(label, MethodSetting(name, options or {}), **more)


ROWS: Mapping[str, TriedRow] = {
    "many": TriedRow(
        (
            side_of("plain" + ALONE, "plain"),
            side_of("plain" + EIGHT, "plain", at_once=8),
            side_of("auto" + EIGHT, "auto", at_once=8),
            side_of("prompt-lookup" + EIGHT, "prompt-lookup", at_once=8),
            side_of("draft-model" + EIGHT, "draft-model", at_once=8),
        ),
        prompts_of_workloads,
        64,
        whole_texts,
        bases=("plain" + ALONE, "plain" + EIGHT),
    ),
    "better": TriedRow(
        (
            side_of("plain, greedy", "plain"),
            side_of("self-consistency", "self-consistency", temperature=0.7),
            side_of(
                "self-consistency, mark=answer is",
                "self-consistency",
                options={"mark": "answer is"},
                temperature=0.7,
            ),
            side_of("best-of-n without a reward", "best-of-n", temperature=0.7),
        ),
        sums_in_words,
        96,
        questions_answered,
        bases=("plain, greedy",),
    ),
    "trained": TriedRow(
        (
            side_of("plain", "plain"),
            side_of("auto", "auto"),
            side_of("eagle-3", "eagle-3"),
            side_of("eagle-3, cost_aware=false", "eagle-3", options={"cost_aware": "false"}),
            side_of(
                "eagle-3, cost_aware=false, nodes=4",
                "eagle-3",
                options={"nodes": "4", "cost_aware": "false"},
            ),
            side_of("draft-model", "draft-model"),
        ),
        prompts_of_workloads,
        128,
        decoding_alone,
        ("zoo:smollm2-states",),
        bases=("plain",),
    ),
    "depths": TriedRow(
        (
            side_of("plain", "plain"),
            side_of("draft-model", "draft-model"),
            side_of("draft-model-bandit", "draft-model-bandit"),
            side_of("draft-model-goodput", "draft-model-goodput"),
            side_of("auto", "auto"),
        ),
        prompts_of_workloads,
        128,
        decoding_alone,
        bases=("plain", "draft-model-bandit"),
    ),
    "company": TriedRow(
        tuple(
            side_of(name + together, name, at_once=count)
            for together, count in ((EIGHT, 8), (SIXTEEN, 16))
            for name in ("plain", "auto")
        ),
        prompts_of_workloads,
        64,
        decoding_alone,
        bases=("plain" + EIGHT, "plain" + SIXTEEN),
    ),
    "long": TriedRow(
        tuple(
            side_of(name, name)
            for name in ("plain", "prompt-lookup", "suffix-automaton", "auto", "draft-model")
        ),
        long_prompts,
        96,
        whole_texts,
        bases=("plain",),
    ),
    "served": TriedRow(
        tuple(
            side_of(label, "plain", at_once=count, further_methods=(MethodSetting("auto", {}),))
            for label, count in (("one engine for both", 8), ("an engine for each", 4))
        ),
        prompts_of_workloads,
        64,
        whole_texts,
        bases=("an engine for each",),
    ),
}


@dataclass
class TokenMoments:
    """An observer of one request: when its tokens came, and how many at a time."""

    kinds = (EditedEvent,)
    clock: Clock
    came: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def __call__(self, event: TraceEvent) -> None:
        if isinstance(event, EditedEvent) and event.tokens:
            self.came.append((self.clock(), len(event.tokens)))


def answer_part(
    lm: api.LoadedModel,
    side: Side,
    methods: Sequence[MethodSetting],
    part: BenchTask,
    tokens: int,
    seed: int,
    clock: Clock,
) -> AnsweredPart:
    """Requests that run at once, by one side. methods: one for each request."""
    engine = api.Engine(lm)
    watching = [TokenMoments(clock) for _ in part.prompts]
    begun = clock()
    tickets = [
        engine.submit(
            prompt,
            method=method.name,
            options=method.options,
            raw=part.raw,
            sampling=lm.sampling_with(temperature=side.temperature),
            max_tokens=tokens,
            seed=seed,
            on=on,
        )
        for prompt, method, on in zip(part.prompts, methods, watching, strict=True)
    ]
    answers = engine.run(tickets)
    ended = clock()
    run = summarise_run(tickets, answers, 0, 0, wanted=part.wanted)
    # An answer of a search comes as a whole: its first moment may be its last one.
    first = max(on.came[0][0] for on in watching)
    last = max(on.came[-1][0] for on in watching)
    return AnsweredPart(
        ended - begun,
        last - first,
        sum(count for on in watching for moment, count in on.came if moment > first),
        run.positions,
        run.passes,
        sum(bool(right) for right in run.right),
        run.ids,
    )


def take_turn(
    lm: api.LoadedModel,
    row: TriedRow,
    side: Side,
    task: BenchTask,
    tokens: int,
    seed: int,
    clock: Clock = time.perf_counter,
) -> Turn:
    """One side answers one task, so many requests at once as it says."""
    parts = list[AnsweredPart]()
    count = len(task.prompts)
    methods = [side.request_method(at, count) for at in range(count)]
    for first in range(0, count, side.at_once):
        some = slice(first, first + side.at_once)
        part = BenchTask(task.workload, task.prompts[some], task.raw, task.wanted[some])
        parts.append(answer_part(lm, side, methods[some], part, tokens, seed, clock))
    work, seconds = row.count(parts)
    return Turn(
        work,
        seconds,
        sum(part.positions for part in parts),
        sum(part.passes for part in parts),
        sum(part.right for part in parts),
        tuple(ids for part in parts for ids in part.ids),
    )


def compare_sides(
    name: str, label: str, base: str, ours: Sequence[Turn], theirs: Sequence[Turn]
) -> dict[str, Any]:
    """A line of the table: one side beside another, on the same tasks in the same order.

    Args:
        name: The row of the front page.
        label: What the side is called.
        base: What the other side is called.
        ours: The side's turns, at least one.
        theirs: The other side's.

    Returns:
        The figures by their columns.
    """
    both = np.array(
        [
            (mine.work, mine.seconds, other.work, other.seconds, mine.right, other.right)
            for mine, other in zip(ours, theirs, strict=True)
        ],
        float,
    )
    tasks = len(both)
    drawn = drawn_again(both).sum(1)
    low, high = central_interval(speed_over(drawn))
    fewest, most = central_interval(points_over(drawn, tasks))
    return {
        "row": name,
        "side": label,
        "over": base,
        "tasks": tasks,
        "speed": round(float(speed_over(both.sum(0))), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "median": round(statistics.median(float(x) for x in speed_over(both)), 3),
        "right": round(100 * sum(mine.right for mine in ours) / tasks, 1),
        "points": round(float(points_over(both.sum(0), tasks)), 1),
        "points low": round(fewest, 1),
        "points high": round(most, 1),
        "tokens a pass": round(
            sum(len(ids) for mine in ours for ids in mine.ids) / sum(mine.passes for mine in ours),
            2,
        ),
        "positions": round(statistics.fmean(mine.positions for mine in ours), 1),
        "like the other": sum(
            mine.ids == other.ids for mine, other in zip(ours, theirs, strict=True)
        ),
    }


def points_over(sums: Any, tasks: int) -> Any:
    """Right answers over the other side's in points of a hundred."""
    return 100 * (sums[..., 4] - sums[..., 5]) / tasks


def measure_row(
    lm: api.LoadedModel,
    name: str,
    tasks: Sequence[BenchTask],
    tokens: int,
    seed: int,
    clock: Clock,
) -> dict[str, list[Turn]]:
    """The turns of every side, after one that warms up."""
    row = ROWS[name]
    turns = {side.label: list[Turn]() for side in row.sides}
    if row.count is decoding_alone:
        # Prompts are not timed, so that they are fed once for all sides that can go on from there.
        lm.checkpoint.lm.keep = max(side.at_once for side in row.sides)
    for side in row.sides:
        take_turn(lm, row, side, tasks[0], min(16, tokens), seed, clock)
    for at, task in enumerate(tasks):
        first = at % len(row.sides)
        for side in (*row.sides[first:], *row.sides[:first]):
            turns[side.label].append(take_turn(lm, row, side, task, tokens, seed + at, clock))
        print(f"\r{at + 1}/{len(tasks)} {task.workload:30}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return turns


def costs_by(lm: api.LoadedModel, clock: Clock) -> PassCosts:
    """What passes cost by this clock, measured before anything is timed: by another one, what other programs compute would
    count as theirs."""
    with patch.object(time, "perf_counter", clock):
        return measure_pass_profile(lm).costs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", choices=list(ROWS))
    parser.add_argument("--data", help="directory of the prompts (default: POLYDEC_DATA)")
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--compute", help="float32, int16 or int8 (default: the machine's)")
    parser.add_argument("--threads", type=int, help="of a pass (default: the machine's cores)")
    parser.add_argument("--each", type=int, default=1, help="tasks of each workload")
    parser.add_argument("--limit", type=int, help="tasks, at even distances (default: all)")
    parser.add_argument("--questions", type=int, default=60, help="sums in words, at most")
    parser.add_argument("--tokens", type=int, help="of an answer, at most (default: the row's own)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processor",
        action="store_true",
        help="seconds of this process's processor time: beside other load, with --threads 1",
    )
    parser.add_argument("--csv", type=Path, help="file to write")
    given = parser.parse_args()
    row = ROWS[given.row]
    lm = api.load(given.model, compute=given.compute, threads=given.threads, trained=row.trained)
    clock = time.process_time if given.processor else time.perf_counter
    lm.__dict__["costs"] = costs_by(lm, clock)
    threads = lm.network.threads
    before = relative_cpu_load()
    tasks = row.tasks(data_root(given.data), given)
    tasks = tasks[:: -(-len(tasks) // (given.limit or len(tasks)))]
    turns = measure_row(lm, given.row, tasks, given.tokens or row.tokens, given.seed, clock)
    print(
        f"{describe_machine(lm.network)}; load before {before:.2f}, after {relative_cpu_load():.2f}"
    )
    lines = list[dict[str, Any]]()
    for kind in ("all", *dict.fromkeys(task.workload for task in tasks)):
        mine = [i for i, task in enumerate(tasks) if kind in ("all", task.workload)]
        for side in row.sides:
            for base in row.bases:
                sides = ([turns[label][i] for i in mine] for label in (side.label, base))
                line = compare_sides(given.row, side.label, base, *sides)
                lines.append(
                    {"kind": kind, "kernel": lm.checkpoint.kernel, "threads": threads} | line
                )
                print(lines[-1])
    if given.csv:
        merge_csv(given.csv, lines, ("row", "kernel", "threads", "kind", "over", "side"))


if __name__ == "__main__":
    main()
