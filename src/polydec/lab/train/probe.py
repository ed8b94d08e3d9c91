"""`polydec train probe`: small networks that say one thing of what a model reads or writes.

A recipe is a file of `train/probes`, and one of that name in `train/specs/probe` with what it can be
told. Its `prepare_probe` loads the models, draws and labels the examples, and says what the loss and
the held-out figures are; here they are learned from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Generator, Tensor, nn

from polydec.lab.train import probes
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule

Artefact = TypeVar("Artefact")
Rows = TypeVar("Rows", bound="SelectableRows")

HEAD_SCHEDULE = {"decay": 1.0, "log_every": 50, "judge_every": 25}
"""Of small heads on states: few steps along one cosine, whose best weights come soon."""


class ProbeSpec(Protocol):
    """What every recipe can be told."""

    recipe: ClassVar[str]

    @property
    def steps(self) -> int: ...
    @property
    def rate(self) -> float: ...
    @property
    def seed(self) -> int: ...


class SelectableRows(Protocol):
    """Examples of which a step takes some."""

    def __len__(self) -> int: ...
    def select_rows(self, picked: Tensor) -> Self:
        """The rows of these numbers, or those for which a mask holds."""
        ...


@dataclass(frozen=True, eq=False)
class ProbeExamples:
    """What a probe learns from or is measured on.

    Attributes:
        input_NX: What it reads of each row: a state, the confidences of a block, the tokens of a
            canvas, frequencies of byte sequences.
        label_N: What it should say of it: 1 or 0, the chance of 1, or a value.
    """

    input_NX: Tensor
    label_N: Tensor

    def __len__(self) -> int:
        return len(self.label_N)

    def select_rows(self, picked: Tensor) -> Self:
        """The rows of these numbers, or those for which a mask holds."""
        return type(self)(*(getattr(self, column.name)[picked] for column in fields(self)))


class TrainableProbe(nn.Module, Generic[Artefact]):
    """The tensors of a probe, to be trained."""

    def __init__(self, build: Callable[..., Artefact], **groups: Tensor | Sequence[Tensor]) -> None:
        """Begin with these tensors.

        Args:
            build: Makes the probe of its tensors, which stand in the order of `groups`.
            groups: By the name that a checkpoint has for it, one tensor or several.
        """
        super().__init__()
        self._build = build
        for name, group in groups.items():
            if isinstance(group, Tensor):
                setattr(self, name, nn.Parameter(group.clone()))
            else:
                setattr(self, name, nn.ParameterList(nn.Parameter(t.clone()) for t in group))

    def current_probe(self) -> Artefact:
        """The probe as it is now; a loss of what it says reaches the tensors."""
        return self._build(*self.parameters())


@dataclass(frozen=True, eq=False)
class ProbeTraining(Generic[Rows]):
    """What a recipe makes of its spec.

    Attributes:
        network: What is trained, in place.
        lessons: What it learns from; a step reads `rows` of them where the spec has such a field,
            else all.
        loss: Of some of the lessons.
        measure: What is printed and kept of the trained network; asked without gradients.
        save: Writes the artefact into a directory; what was measured is given to it.
        aside: The loss on what is set aside; the weights that are best there stay. None: the last.
        identity: What tells this run from others, beside its spec.
        schedule: Fields of the run's `TrainingSchedule`; steps and rate are the spec's.
        generator: Names a step's choice of rows; None: by seed and step.
    """

    network: nn.Module
    lessons: Rows
    loss: Callable[[Rows], Tensor]
    measure: Callable[[], Mapping[str, Any]]
    save: Callable[[Path, Mapping[str, Any]], None]
    aside: Callable[[], Tensor] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    schedule: Mapping[str, Any] = field(default_factory=lambda: HEAD_SCHEDULE)
    generator: Callable[[int], Generator] | None = None


def train_probe(spec: ProbeSpec) -> dict[str, Any]:
    """Train the probe of a spec's recipe, and save it at spec.out; see `run_training`.

    The models that it reads are left as they are. What they wrote to learn from stays in spec.out.

    Raises:
        RequestError: The spec asks for a model or a text that does not fit, or for an `out` that
            belongs to another training.
    """
    recipe = import_module(f"{probes.__name__}.{spec.recipe.replace('-', '_')}")
    clock = getattr(recipe, "CLOCK", time.perf_counter)

    def prepare_spec(spec: ProbeSpec) -> TrainingRun:
        return _course(spec, recipe.prepare_probe(spec))

    return run_training(spec.recipe, spec, prepare_spec, clock)


def _course(spec: ProbeSpec, training: ProbeTraining[Any]) -> TrainingRun:
    lessons = training.lessons
    # A recipe without such a field has few examples, and takes all of them at each step.
    rows: int | None = getattr(spec, "rows", None)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Without `rows` the probe is small enough to learn from all lessons in every step.
        if rows is None:
            return training.loss(lessons), len(lessons)
        if training.generator is None:
            g = generator_for(spec.seed, step, "rows")
        else:
            g = training.generator(step)
        picked = torch.randint(len(lessons), (rows,), generator=g)
        return training.loss(lessons.select_rows(picked)), rows

    return TrainingRun(
        training.network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, **training.schedule),
        run_identity(spec, **training.identity),
        training.save,
        torch.no_grad()(training.measure),
        training.aside,
    )
