"""Prophet where the place of the answer is known: how much sooner a text ends, and what that costs.

    python -m benchmarks.studies.answer_region [--model zoo:diffusion] [--each 20] [--seeds 3]

Answers of six digits have one token a digit; what is asked for is the last two. A way ends early by the published bounds (7.5,
5 and 2.5 logits) or by higher ones (12, 9, 6), looking at all gaps, at the gaps of these two places, or at both with whatever
stands there already (published). passes: of the model; right: share of answers that are right as a whole. A line of each seed's
figures, in which tasks are drawn anew, and their mean.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from polydec import Ask, generate, load
from polydec.api import LoadedModel
from polydec.lab.train.held_out_questions import fresh_held_out_tasks
from polydec.lab.train.tasks import SyntheticTask, is_right_task_answer

TASKS = ("copy", "fill", "shuffle", "pick", "count", "replace")
"""Those whose answers have six digits."""
DIGITS, SPAN = 6, 2
ROOM = 13
PUBLISHED = {"early": 7.5, "middle": 5.0, "late": 2.5}
HIGHER = {"early": 12.0, "middle": 9.0, "late": 6.0}
PLACE = {"region": DIGITS - SPAN, "span": SPAN}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "one a pass": ("llada", {}),
    **{
        f"prophet, {bounds}, {where}": ("prophet", {**values, **place})
        for bounds, values in (("published bounds", PUBLISHED), ("higher bounds", HIGHER))
        for where, place in (
            ("all gaps", {}),
            ("gaps of the place", PLACE),
            ("all of the place", {**PLACE, "counted": True}),
        )
    },
}


def measured(
    model: LoadedModel,
    tasks: Sequence[tuple[str, SyntheticTask]],
    method: str,
    options: Mapping[str, Any],
) -> dict[str, float]:
    """One way on some tasks."""
    asks = [
        Ask(task.question, method=method, options={"block": 0, **options}, max_tokens=ROOM)
        for _, task in tasks
    ]
    answers = generate(model, asks)
    right = [
        is_right_task_answer(name, task.question, answer.text)
        for (name, task), answer in zip(tasks, answers, strict=True)
    ]
    return {
        "passes": mean([answer.metrics["target_passes"] for answer in answers]),
        "right": mean(right),
    }


def main() -> None:
    """One line of JSON a way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:diffusion")
    parser.add_argument("--each", type=int, default=20, help="tasks of each kind and seed")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    model = load(asked.model, draft=None, threads=1)
    for name, (method, options) in WAYS.items():
        rows = list[dict[str, float]]()
        for seed in range(asked.seeds):
            tasks = [
                (kind, t) for kind in TASKS for t in fresh_held_out_tasks(kind, seed, asked.each)
            ]
            rows.append(measured(model, tasks, method, options))
        said = {key: [round(row[key], 3) for row in rows] for key in rows[0]}
        means = {key: round(mean([row[key] for row in rows]), 3) for key in rows[0]}
        print(json.dumps({"way": name, **said, "mean": means}), flush=True)


if __name__ == "__main__":
    main()
