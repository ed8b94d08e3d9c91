"""A model from files, with its draft and whatever was trained for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from polydec.base.errors import PolydecError, RequestError
from polydec.core.protocols import Target
from polydec.methods.registry.kit import ModelArtefact, check_artefact_fit
from polydec.models.formats import zoo
from polydec.models.learned import artefacts
from polydec.models.sessions import checkpoint, sources
from polydec.models.sessions.checkpoint import DeferredBundle, ModelBundle
from polydec.request.loaded import TORCH_THREADS, LoadedModel


def assemble_loaded_model(
    name: str,
    *,
    draft: str | None,
    dtype: str,
    device: str,
    threads: int | None,
    workers: int,
    quantize: str | None,
    compute: str | None,
    cache_dtype: str | None,
    ngrams: str | None,
    trained: Sequence[str],
) -> LoadedModel:
    """Load a model with all that goes with it, as `polydec.load` gives it (loading.py).

    Args:
        name: Of the model: Hub id, directory, GGUF file or `zoo:NAME`.
        draft: Of the draft model; "default" for the embedded one, None or "none" for none.
        dtype: What the model computes with.
        device: "cpu" or "cuda".
        threads: Of the processor. None: all cores.
        workers: How many networks run at the same time.
        quantize: How matrices are stored. None: as they are.
        compute: What quantised matrices are multiplied in. None: as the processor does it best.
        cache_dtype: How keys and values are kept. None: as float32.
        ngrams: Of the n-gram table; "default" for the embedded one, None or "none" for none.
        trained: Directories of what else was trained for the model.

    Returns:
        The model.

    Raises:
        RequestError: Something cannot be had, or was made for another model.
    """
    # What was made for an embedded model and lies beside it.
    own_draft = zoo.default_draft(name)
    own_table = zoo.default_ngrams(name)
    if draft == "default" and workers > 1:
        draft = own_draft or "none"
    if workers > 1:
        threads = _half(device, threads, workers)
    # A draft model shares its target's tokenizer, so files that were opened are handed on.
    opened = dict[Path, sources.CheckpointFiles]()
    model = checkpoint.load_bundle(
        name,
        dtype=dtype,
        device=device,
        threads=threads,
        quantize=quantize,
        compute=compute,
        cache_dtype=cache_dtype,
        opened=opened,
    )
    named = draft != "default"
    if not named:
        draft = own_draft
    # The command line has a word for None.
    if draft == "none":
        draft = None
    if ngrams == "none":
        ngrams = None
    if draft is None:
        small = None
    else:
        small = _small(draft, named, model, dtype, device, threads, opened)
    # "default" is the table that belongs to the model, where it has one.
    if ngrams == "default":
        table = own_table
    else:
        table = ngrams
    paths = [*trained, *([] if table is None else [table])]
    called = tuple(trained if ngrams == "default" else paths)
    fitted = tuple(
        # A function, since only some artefacts read the draft, which may not be loaded yet.
        _fitted(artefacts.load_artefact(p), model.lm, lambda: None if small is None else small.lm)
        for p in paths
    )
    if workers > 1 and small is None and not any(_runs_beside(a) for a in fitted):
        raise RequestError(
            f"workers is {workers} and {name} has no draft model, which the second one runs: name one (--draft)"
        )
    _share_threads(model, None if isinstance(small, DeferredBundle) else small, device, threads)
    return LoadedModel(model, small, fitted, called, named and small is not None, workers)


def _half(device: str, threads: int | None, workers: int) -> int:
    """The threads of each worker. Raises RequestError where there are too few cores."""
    cores = min(len(os.sched_getaffinity(0)), threads or 1 << 16)
    if device != "cpu":
        raise RequestError(
            f"workers is {workers} and device is {device!r}: workers share the cores of a CPU, so leave workers out"
        )
    if cores < workers:
        raise RequestError(
            f"workers is {workers}: each needs a core of its own, and there is 1 here (workers 1 runs the passes in turns)"
        )
    return cores // workers


def _runs_beside(artefact: ModelArtefact) -> bool:
    """Whether passes of an artefact may run while those of the model do."""
    return getattr(artefact, "runs_beside", False)


def _fitted(artefact: Any, target: Target, draft: Callable[[], Target | None]) -> ModelArtefact:
    """An artefact for the model, or for the draft model where it was made for that. Raises
    PolydecError where it fits none."""
    # Made for the model or for its draft: both are tried, and the first refusal is told.
    try:
        bound = artefacts.bind_artefact(artefact, target)
        check_artefact_fit(bound, target, draft)
        return bound
    except PolydecError as why:
        small = draft()
        if small is None:
            raise
        try:
            bound = artefacts.bind_artefact(artefact, small)
            check_artefact_fit(bound, small, lambda: small)
            return bound
        except PolydecError:
            raise why from None


def _small(
    name: str,
    named: bool,
    model: ModelBundle,
    dtype: str,
    device: str,
    threads: int | None,
    opened: dict[Path, sources.CheckpointFiles],
) -> ModelBundle | DeferredBundle:
    """A draft model: now where the user named it, as what is wrong with it is said at once, else
    when a method asks for it."""

    def make_artefact() -> ModelBundle:
        small = checkpoint.load_draft(
            name, dtype=dtype, device=device, threads=threads, opened=opened
        )
        opened.clear()
        _share_threads(model, small, device, threads)
        return small

    if named:
        return make_artefact()
    return DeferredBundle(name, make_artefact)


def _share_threads(
    model: ModelBundle, small: ModelBundle | None, device: str, threads: int | None
) -> None:
    """Beside the native step torch has single rows to do: its threads would only be in the way."""
    if device == "cpu":
        native = not model.why and (small is None or not small.why)
        torch.set_num_threads(1 if native else threads or TORCH_THREADS)
