"""What every kind of training does alike: go on where a run was, fit, measure, save, and write down what came of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from polydec.base import files
from polydec.base.interrupts import postpone_interrupts
from polydec.lab.train.loop import fit_network
from polydec.lab.train.progress import show_training_progress
from polydec.lab.train.schedule import TrainingSchedule

Spec = TypeVar("Spec")

STATE = "state.pt"
RESULT = "training.json"
"""Files of a run in its directory: where it goes on when it was interrupted, and what was measured."""
STOPPING = (
    "polydec: stopping: the step under way ends and is saved (once more: at once, losing the steps since the last "
    "checkpoint)"
)


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """What a kind of training is made of, once its models and its data are loaded and split.

    network: what is trained, in place; loss, schedule, aside, deep: see `fit`; identity: what must be the same for a run to go
    on (see `identity`); measure: what is said of the trained network, and so what it prints and keeps in training.json; save:
    writes the artefact into the directory, and may keep in it what was measured; log: what only training.json keeps; title:
    stands before the progress, in place of the kind's name.
    """

    network: nn.Module
    loss: Callable[[int], tuple[Tensor, int]]
    schedule: TrainingSchedule
    identity: Mapping[str, Any]
    save: Callable[[Path, Mapping[str, Any]], None]
    measure: Callable[[], Mapping[str, Any]] = dict[str, Any]
    aside: Callable[[], Tensor] | None = None
    deep: Sequence[nn.Parameter] = ()
    log: Mapping[str, Any] = field(default_factory=dict[str, Any])
    title: str = ""


def run_training(
    kind: str,
    spec: Spec,
    prepare: Callable[[Spec], TrainingRun],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Train what `prepare` makes of a spec, which has a field `out`, the directory to write.

    Returns what was measured, with steps, loss, seconds and the curve of the loss; out/training.json keeps it. Called again
    after an interruption, it goes on from out/state.pt, to the same weights: at Ctrl-C or SIGTERM the step ends, the state is
    saved, and KeyboardInterrupt says so; a second Ctrl-C ends it at once. Raises RequestError on a state that belongs to
    another run, and what `prepare` raises.
    """
    out, began = Path(getattr(spec, "out")), clock()  # noqa: B009
    course = prepare(spec)
    out.mkdir(parents=True, exist_ok=True)
    with (
        postpone_interrupts(STOPPING) as stop,
        show_training_progress(course.title or kind, course.schedule.steps) as watch,
    ):
        curve = fit_network(
            course.network,
            course.loss,
            course.schedule,
            state=out / STATE,
            identity=course.identity,
            watch=watch,
            aside=course.aside,
            deep=course.deep,
            stop=stop,
        )
    result: dict[str, Any] = {
        "steps": course.schedule.steps,
        "loss": curve[-1][1],
        "seconds": round(clock() - began, 1),
        **course.measure(),
    }
    course.save(out, result)
    result["curve"] = curve
    write_down(out, {**result, **course.log})
    return result


def run_identity(spec: Any, *free: str, **beside: Any) -> dict[str, Any]:
    """What tells a run from others: the fields of its spec but for where it lies, what is `free`, and what else decides."""
    left = {"out", "data", *free}
    return {k: v for k, v in asdict(spec).items() if k not in left} | beside


def tensor_digest(*tensors: Tensor) -> str:
    """What tells the whole numbers that were learned from others."""
    made = hashlib.sha1()
    for t in tensors:
        made.update(t.to(torch.int64).numpy().tobytes())
    return made.hexdigest()


def write_down(out: Path, result: Mapping[str, Any]) -> None:
    """Keep what was measured in out/training.json."""
    text = json.dumps(result, indent=1) + "\n"
    files.replace_file_atomically(out / RESULT, lambda at: Path(at).write_text(text, "utf-8"))
