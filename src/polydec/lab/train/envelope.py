"""What every kind of training does alike: resume, fit, measure, save, and write down the result."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
"""Files of a run in its directory: where it goes on when it was interrupted, and what was measured.
"""
STOPPING = (
    "polydec: stopping: the step under way ends and is saved (once more: at once, losing that step)"
)


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """What a kind of training is made of, once its models and its data are loaded and split.

    Attributes:
        network: What is trained, in place.
        loss: See `fit_network`.
        schedule: See `fit_network`.
        identity: What must be the same for a run to go on; see `run_identity`.
        save: Writes the artefact into the directory, and may keep in it what was measured.
        measure: What is reported of the trained network; it is printed and kept in training.json.
        aside: See `fit_network`.
        deep: See `fit_network`.
        after_step: See `fit_network`.
        log: What only training.json keeps.
        title: Stands before the progress, in place of the kind's name.
    """

    network: nn.Module
    loss: Callable[[int], tuple[Tensor, int]]
    schedule: TrainingSchedule
    identity: Mapping[str, Any]
    save: Callable[[Path, Mapping[str, Any]], None]
    measure: Callable[[], Mapping[str, Any]] = dict[str, Any]
    aside: Callable[[], Tensor] | None = None
    deep: Sequence[nn.Parameter] = ()
    after_step: Callable[[], None] = lambda: None
    log: Mapping[str, Any] = field(default_factory=dict[str, Any])
    title: str = ""


def run_training(
    kind: str,
    spec: Spec,
    prepare: Callable[[Spec], TrainingRun],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Train what `prepare` makes of a spec, measure it, and save it.

    Called again after an interruption, it goes on from out/state.pt, to the same weights. At Ctrl-C
    or SIGTERM the step ends and the state is saved; a second Ctrl-C loses that step. A field
    `save_every` of the spec stands before that of the schedule.

    Args:
        kind: Name of the kind of training, for the progress.
        spec: Options, with a field `out`, the directory to write.
        prepare: Loads models and data, and says what is trained.
        clock: Seconds, for the duration that is reported. Default: wall time.

    Returns:
        What was measured, with steps, loss, seconds and the curve of the loss; out/training.json
        keeps it.

    Raises:
        RequestError: The state in the directory belongs to another run; and what `prepare` raises.
        KeyboardInterrupt: The training was stopped; the message says where it goes on.
    """
    out, began = Path(getattr(spec, "out")), clock()  # noqa: B009
    course = prepare(spec)
    # Only now: a wrong spec leaves no directory.
    out.mkdir(parents=True, exist_ok=True)
    schedule = course.schedule
    # None, or no such field: as the kind has it.
    if (often := getattr(spec, "save_every", None)) is not None:
        schedule = replace(schedule, save_every=often)

    def begin_steps(step: int) -> None:
        # A run that begins says nothing: that is what everybody expects.
        if step:
            _say_resumption(course.title or kind, step, schedule.steps, out / STATE)

    # An interrupt is postponed until the step has ended and is saved.
    with (
        postpone_interrupts(STOPPING) as stop,
        show_training_progress(course.title or kind, schedule.steps) as watch,
    ):
        # The checkpoint lies in the directory, so that the same command goes on from it.
        curve = fit_network(
            course.network,
            course.loss,
            schedule,
            state=out / STATE,
            identity=course.identity,
            watch=watch,
            aside=course.aside,
            deep=course.deep,
            after_step=course.after_step,
            stop=stop,
            without_interrupts=stop.without_interrupts,
            begin=begin_steps,
        )
    # The curve's last point is the loss that is reported.
    result: dict[str, Any] = {
        "steps": schedule.steps,
        "loss": curve[-1][1],
        "seconds": round(clock() - began, 1),
        **course.measure(),
    }
    course.save(out, result)
    # Artefacts get the result without the curve, which is long.
    result["curve"] = curve
    write_down(out, {**result, **course.log})
    return result


def _say_resumption(title: str, step: int, steps: int, state: Path) -> None:
    """Write on standard error which step a run goes on with."""
    # It was stopped behind the last step, before the result was saved.
    if step == steps:
        behind = "all steps are taken, it is measured and saved"
    else:
        behind = f"goes on with step {step + 1}"
    print(f"{title}: {state} has {step} of {steps} steps, {behind}", file=sys.stderr, flush=True)


def run_identity(spec: Any, *free: str, **beside: Any) -> dict[str, Any]:
    """What tells a run from others.

    Args:
        spec: Options, a dataclass.
        *free: Names of further fields that may change between the parts of a run; `out`, `data` and
            `save_every` always may.
        **beside: What else decides, by name.

    Returns:
        Names and values that a checkpoint keeps and compares.
    """
    # A run may be moved, and its data too: a digest of the data stands in `beside`.
    left = {"out", "data", "save_every", *free}
    return {k: v for k, v in asdict(spec).items() if k not in left} | beside


def tensor_digest(*tensors: Tensor) -> str:
    """SHA-1 of tensors of whole numbers, which tells the learned data from others."""
    made = hashlib.sha1()
    for t in tensors:
        # One type for all: the same numbers have the same digest.
        made.update(t.to(torch.int64).numpy().tobytes())
    return made.hexdigest()


def write_down(out: Path, result: Mapping[str, Any]) -> None:
    """Keep what was measured in out/training.json.

    Args:
        out: Directory of the run.
        result: What was measured; JSON's types only.
    """
    text = json.dumps(result, indent=1) + "\n"
    files.replace_file_atomically(out / RESULT, lambda at: Path(at).write_text(text, "utf-8"))
