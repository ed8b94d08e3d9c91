"""The full step of the Llama skeleton in one native call, for CPUs: faster than the torch path, and
every row exact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from polydec.base.caller_warnings import warn_caller
from polydec.base.errors import PolydecError
from polydec.models.native.library import (
    cache_dtype_of,
    compute_of,
    describe_missing_native_step,
    native_instruction_sets,
    native_step_availability,
)

if TYPE_CHECKING:
    from polydec.models.native.network import CpuStep


def try_native_network(
    config: Mapping[str, Any],
    weights: Mapping[str, Any],
    threads: int | None = None,
    quantize: str | None = None,
    compute: str | None = None,
    cache_dtype: str | None = None,
) -> tuple[CpuStep | None, str]:
    """Make the native network of a checkpoint, or say why the torch path serves it.

    Args:
        config: Content of the config.json.
        weights: Its tensors by name, or an open GGUF file.
        threads: Threads, 1 or more; None: all cores that this process may use.
        quantize: "q8_0" or "q4_1" stores the matrices of a float checkpoint so; None: as they are.
        compute: What quantised matrices are multiplied in, one of `COMPUTES`; None:
            POLYDEC_COMPUTE, else the default of the instruction set.
        cache_dtype: How keys and values are stored, one of `CACHES`; None: POLYDEC_CACHE_DTYPE,
            else float32.

    Returns:
        The network on the best instruction set, and ""; or None, and why.

    Raises:
        MissingError: `compute` or `cache_dtype`, or its environment variable, names nothing that
            exists.
    """
    runs, why = native_step_availability()
    if not runs:
        return None, why
    isa = native_instruction_sets()[0]
    compute = compute_of(compute, isa)
    cache_dtype = cache_dtype_of(cache_dtype)
    # The portable kernels are slower than torch: they run only where somebody asks for them by
    # name.
    if isa == "portable" and not os.environ.get("POLYDEC_ISA"):
        return None, "the native step has no kernels for this machine's instruction set"
    from polydec.models.native.network import CpuStep

    try:
        return CpuStep.build(
            config,
            weights,
            threads=threads,
            isa=isa,
            quantize=quantize,
            compute=compute,
            cache_dtype=cache_dtype,
        ), ""
    # Whatever the step does not serve is a reason for torch, not an error.
    except PolydecError as e:
        return None, str(e)


def warn_missing_native_step() -> None:
    """Warn, once in a process, that the native step does not run here, where it does not."""
    runs, why = native_step_availability()
    if not runs:
        _warn_once(why)


# The cache is what makes it once: the same reason is not said again.
@cache
def _warn_once(why: str) -> None:
    warn_caller(describe_missing_native_step(why))
