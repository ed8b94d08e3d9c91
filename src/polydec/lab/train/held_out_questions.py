"""Held-out questions for measuring masked-diffusion models, none of which the embedded models know.

What is trained now learns from no held-out question (`draw_task`). The embedded models were trained
before that was so: their stages stand here as in their README.md, and what a benchmark asks leaves
out the questions of these.
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
    """A stage of training of an embedded model.

    Where some tasks are long and others are not, every other step is of the long ones.

    Attributes:
        seed: Seed of the stage.
        steps: Number of steps.
        tasks: Names of the tasks, which take turns; a name that stands twice has two turns.
        rows: Questions of a step, at most. Default 64.
    """

    seed: int
    steps: int
    tasks: tuple[str, ...]
    rows: int = 64

    def task_numbers(self, name: str) -> Sequence[int]:
        """The numbers of the questions of this seed that a task had."""
        if name not in self.tasks:
            return ()
        # Whether long and other tasks are mixed, so that they alternate by step.
        both = 0 < sum(x in LONG for x in self.tasks) < len(self.tasks)
        # The tasks that share their steps with this one.
        turn = [x for x in self.tasks if not both or (x in LONG) == (name in LONG)]
        steps = range(int(both and name in LONG), self.steps, 1 + both)
        # A task may have several turns in a round.
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
"""The stages of zoo:diffusion, and the one that zoo:block-diffusion adds. Of stage 7 the tasks that
go on were made a little differently, and are not known to a question."""


@cache
def embedded_training_questions(name: str) -> frozenset[str]:
    """The questions of a task that an embedded model was trained on; some seconds of computing."""
    # Drawn as the stages drew them: with False for held out, and lists of six.
    return frozenset(
        TASKS[name](random.Random(f"{name} {run.seed} {i} False"), SIX).question
        for run in RUNS
        for i in run.task_numbers(name)
    )


def fresh_held_out_tasks(
    name: str, seed: int, count: int, of: TaskVariety = SIX
) -> list[SyntheticTask]:
    """Draw held-out tasks, first those that no embedded model was trained on.

    Where there are too few of these (`slots` and `fill` have few questions), others follow that it
    was trained on; where there are too few questions at all, some come again.

    Args:
        name: Name of the task.
        seed: Seed of the draws.
        count: How many tasks are wanted.
        of: Which values the tasks have. Default: those of the embedded models.

    Returns:
        `count` tasks.
    """
    # Four times as many as wanted: many questions come again, or are known.
    tasks = [draw_task(name, seed, i, unseen=True, of=of) for i in range(4 * count)]
    known = embedded_training_questions(name)
    if len({t.question for t in tasks} - known) < count:
        tasks += [
            draw_task(name, seed, i, unseen=True, of=of) for i in range(4 * count, 100 * count)
        ]
    # The first task of each question, in the order in which questions came.
    first = {t.question: t for t in reversed(tasks)}
    different = [first[q] for q in dict.fromkeys(t.question for t in tasks)]
    unseen = [t for t in different if t.question not in known]
    return [*unseen, *(t for t in different if t.question in known), *tasks][:count]
