"""The whole step of the Llama skeleton in one native call, for CPUs: faster than the torch path, and every row exact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polydec.base.errors import PolydecError
from polydec.models.native.library import (
    cache_dtype_of,
    compute_of,
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
    """The native network of a checkpoint, on the first of `sets`, or None and why the torch path serves. Raises MissingError
    where `compute` (or POLYDEC_COMPUTE) names no arithmetic, or `cache_dtype` (or POLYDEC_CACHE_DTYPE) no way to keep keys and
    values."""
    runs, why = native_step_availability()
    if not runs:
        return None, why
    isa = native_instruction_sets()[0]
    compute = compute_of(compute, isa)
    cache_dtype = cache_dtype_of(cache_dtype)
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
    except PolydecError as e:
        return None, str(e)
