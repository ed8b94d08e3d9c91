"""What ways to fill a canvas make of held-out tasks whose answers have six digits: passes, positions fed, right answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from polydec import Ask, generate
from polydec.api import LoadedModel
from polydec.lab.train.held_out_questions import fresh_held_out_tasks
from polydec.lab.train.tasks import SyntheticTask, is_right_task_answer

TASKS = ("copy", "fill", "shuffle", "pick", "count", "replace")
DIGITS = 6
ROOM = 13
"""Positions of a canvas."""


def measured(
    model: LoadedModel,
    tasks: Sequence[tuple[str, SyntheticTask]],
    method: str,
    options: Mapping[str, Any],
) -> dict[str, float]:
    """One way on some tasks: passes and positions an answer, and the share of right answers."""
    asks = [
        Ask(task.question, method=method, options={"block": 0, **options}, max_tokens=ROOM)
        for _, task in tasks
    ]
    # One call: requests share passes, and what a request fed is counted for itself.
    answers = generate(model, asks)
    right = [
        is_right_task_answer(name, task.question, answer.text)
        for (name, task), answer in zip(tasks, answers, strict=True)
    ]
    return {
        "passes": mean([answer.metrics["target_passes"] for answer in answers]),
        "fed": mean([answer.metrics["positions_fed"] for answer in answers]),
        "right": mean(right),
    }


def print_ways(
    model: LoadedModel,
    ways: Mapping[str, tuple[str, Mapping[str, Any]]],
    each: int,
    seeds: int,
) -> None:
    """One line of JSON a way: the figures of each seed, in which `each` tasks of each kind are drawn anew, and their means."""
    for name, (method, options) in ways.items():
        # The same tasks for every way, as seeds name them.
        rows = [
            measured(
                model,
                [(kind, t) for kind in TASKS for t in fresh_held_out_tasks(kind, seed, each)],
                method,
                options,
            )
            for seed in range(seeds)
        ]
        said = {key: [round(row[key], 3) for row in rows] for key in rows[0]}
        means = {key: round(mean([row[key] for row in rows]), 3) for key in rows[0]}
        print(json.dumps({"way": name, **said, "mean": means}), flush=True)
