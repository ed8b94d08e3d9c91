"""Questions to measure masked-diffusion models on: held out, and none that the embedded ones were trained on.

What is trained now learns from no question that is held out (`tasks.make`). The embedded models were trained before that was
so: their stages stand here as in their README.md, and what a benchmark asks leaves out the questions of these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from polydec.lab.train.tasks import LONG, SIX, TASKS, SyntheticTask, TaskVariety, draw_task

SEVEN = ("copy", "slots", "fill", "shuffle", "pick", "count", "replace")
THREE_MORE = (*SEVEN, "shuffle", "replace", "slots", *LONG)
LATE = (
    *("count", "replace", "copy", "count", "replace", "shuffle", "slots", "count", "replace"),
    *("fill", "pick"),
    *LONG,
)
LAST = (
    *("fill", "pick", "count", "replace", "copy", "shuffle", "fill", "pick", "slots", "count"),
    *LONG,
)


@dataclass(frozen=True)
class EarlierTrainingStage:
    """A stage of training: its seed, its steps, its tasks in turn, and how many questions a step has at most. Where some tasks
    go on and others do not, every other step is of those that do."""

    seed: int
    steps: int
    tasks: tuple[str, ...]
    rows: int = 64

    def numbers(self, name: str) -> Sequence[int]:
        """Which questions of its seed this task had."""
        if name not in self.tasks:
            return ()
        both = 0 < sum(x in LONG for x in self.tasks) < len(self.tasks)
        turn = [x for x in self.tasks if not both or (x in LONG) == (name in LONG)]
        steps = range(int(both and name in LONG), self.steps, 1 + both)
        places = frozenset(i for i, x in enumerate(turn) if x == name)
        return [
            i
            for step in steps
            for i in range(step * self.rows, (step + 1) * self.rows)
            if i % len(turn) in places
        ]


RUNS = (
    EarlierTrainingStage(
        0, 1000, ("copy", "reverse", "sort", "slots", "fill", "shuffle", "sums", "chain")
    ),
    EarlierTrainingStage(
        1, 500, ("copy", "sort", "slots", "fill", "shuffle", "sums", "pick", "count")
    ),
    EarlierTrainingStage(2, 500, ("copy", "slots", "fill", "shuffle", "sums", "pick", "count")),
    EarlierTrainingStage(3, 480, ("copy", "slots", "count", "fill", "pick", "slots", "count")),
    EarlierTrainingStage(
        4, 300, ("count", "slots", "copy", "count", "fill", "slots", "count", "pick")
    ),
    EarlierTrainingStage(5, 170, ("count", "slots", "count", "slots", "copy", "pick", "fill")),
    EarlierTrainingStage(11, 800, (*SEVEN, *LONG)),
    EarlierTrainingStage(12, 1000, THREE_MORE),
    EarlierTrainingStage(15, 600, THREE_MORE),
    EarlierTrainingStage(21, 2400, THREE_MORE),
    EarlierTrainingStage(41, 3000, LATE),
    EarlierTrainingStage(61, 260, LAST, 32),
    EarlierTrainingStage(43, 600, LATE),
)
"""The stages of zoo:diffusion, and the one that zoo:block-diffusion adds. Of stage 7 the tasks that go on were made a little
differently, and are not known to a question."""


@cache
def embedded_training_questions(name: str) -> frozenset[str]:
    """The questions of a task that an embedded model was trained on: some seconds of computing."""
    return frozenset(
        TASKS[name](random.Random(f"{name} {run.seed} {i} False"), SIX).question
        for run in RUNS
        for i in run.numbers(name)
    )


def fresh_held_out_tasks(
    name: str, seed: int, count: int, of: TaskVariety = SIX
) -> list[SyntheticTask]:
    """`count` held-out tasks of this name: first different ones that no embedded model was trained on; where there are too few
    of these (`slots` and `fill` have few questions), others that it was trained on; and where there are too few questions, some
    of them again."""
    tasks = [draw_task(name, seed, i, unseen=True, of=of) for i in range(4 * count)]
    known = embedded_training_questions(name)
    if len({t.question for t in tasks} - known) < count:
        tasks += [
            draw_task(name, seed, i, unseen=True, of=of) for i in range(4 * count, 100 * count)
        ]
    first = {t.question: t for t in reversed(tasks)}
    different = [first[q] for q in dict.fromkeys(t.question for t in tasks)]
    unseen = [t for t in different if t.question not in known]
    return [*unseen, *(t for t in different if t.question in known), *tasks][:count]
