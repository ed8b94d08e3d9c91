"""What machine a figure was measured on. Commands ask whether it is busy before anything computes,
so torch is loaded later."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from polydec.base.version import PACKAGE_VERSION


def cpu_flags() -> list[str]:
    """Those instruction sets that decide which kernel is fast."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
        have = set(next(line for line in lines if line.startswith("flags")).split())
    except (OSError, StopIteration):
        import torch

        return [torch.backends.cpu.get_cpu_capability()]
    return [
        f for f in ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f in have
    ]


def describe_machine(network: Any = None) -> str:
    """One line: processor, cores used (by this network, else by torch), instruction sets, versions."""
    import torch

    from polydec.models.nets.linear import cpu_name

    threads = getattr(network, "threads", None) or torch.get_num_threads()
    return (
        f"{cpu_name()}, {threads} threads of {os.cpu_count()} cores ({' '.join(cpu_flags())}), "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def package_versions() -> dict[str, str]:
    """Of what figures and texts may depend on beside the machine."""
    import numpy as np
    import torch

    return {
        "polydec": PACKAGE_VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
    }


BUSY = 0.2
"""Load of a core from which on figures are doubtful: another process on few cores stretches a pass
many times (thread barriers)."""


def relative_cpu_load() -> float:
    """Load of the last minute in units of all cores; 0 where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0
