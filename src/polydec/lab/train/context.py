"""`polydec train context`: models that read vectors where words would stand. Each kind is a file of
`train/contexts`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from polydec.lab.train import contexts
from polydec.lab.train.envelope import TrainingRun, run_training
from polydec.lab.train.specs.context import ContextSpec


def train_context(spec: ContextSpec) -> dict[str, Any]:
    """Train, and save a directory that `polydec.load` reads at spec.out; what was measured on
    questions that are held out stands in training.json. See `carry_out`. Raises RequestError on a
    wrong spec."""
    return run_training(f"context {spec.kind}", spec, _course)


def _course(spec: ContextSpec) -> TrainingRun:
    module = import_module(f"{contexts.__name__}.{spec.kind.replace('-', '_')}")
    return module.course(spec)
