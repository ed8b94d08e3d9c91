"""`polydec train context`: models that read vectors where words would stand.

Each kind is a file of `train/contexts`, which generates its tasks, and most are one of
`train/own_contexts`, too, for a model and a text of one's own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from polydec.lab.train import contexts, own_contexts
from polydec.lab.train.envelope import TrainingRun, run_training
from polydec.lab.train.specs.context import ContextSpec


def train_context(spec: ContextSpec) -> dict[str, Any]:
    """Train a model that reads vectors where words would stand, and save it at spec.out.

    The directory is one that `polydec.load` reads. What was measured on held-out questions stands
    in training.json. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.
    """
    return run_training(f"context {spec.kind}", spec, _course)


def _course(spec: ContextSpec) -> TrainingRun:
    # A kind is a module with a function `course`; it is imported only when it is asked for.
    package = contexts if spec.data is None else own_contexts
    module = import_module(f"{package.__name__}.{spec.kind.replace('-', '_')}")
    return module.course(spec)
