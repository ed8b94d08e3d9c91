"""The whole step of the Llama skeleton in one native call, for CPUs: faster than the torch path, and every row exact."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polydec.models.cpu.library import available, sets

if TYPE_CHECKING:
    from polydec.models.cpu.network import CpuStep


def attempt(config: Mapping[str, Any], weights: Mapping[str, Any], threads: int | None = None,
            quantize: str | None = None) -> tuple[CpuStep | None, str]:
    """The native network of a checkpoint, or None and why the torch path serves."""
    runs, why = available()
    if not runs:
        return None, why
    if sets()[0] == "portable":
        return None, "the native step has no kernels for this machine's instruction set"
    from polydec.models.cpu.network import CpuStep
    try:
        return CpuStep.build(config, weights, threads=threads, quantize=quantize), ""
    except ValueError as e:
        return None, str(e)
