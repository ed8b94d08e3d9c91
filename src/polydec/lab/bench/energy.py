"""What the processor has taken from the plug, where the machine tells it (RAPL under Linux)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


def read_energy_counters(folder: Path = POWERCAP) -> dict[str, tuple[float, float]] | None:
    """Of each package what its counter shows and where it begins anew, in joules; None where none
    can be read, as is usual for those who are not root."""
    out = dict[str, tuple[float, float]]()
    try:
        for package in sorted(folder.glob("intel-rapl:[0-9]")):
            # The files hold microjoules; the second one says where the counter wraps around.
            used, most = (
                int((package / name).read_text()) / 1e6
                for name in ("energy_uj", "max_energy_range_uj")
            )
            out[package.name] = (used, most)
    except (OSError, ValueError):
        return None
    return out or None


def joules_between(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]
) -> float:
    """Energy that the processor took between two readings.

    Args:
        before: The earlier reading of `read_energy_counters`: by package the counter and its
            wrap-around value, joules.
        after: The later reading, in the same form.

    Returns:
        Joules of all packages together. A counter that went back is taken to have wrapped around
        once.
    """
    return sum(
        used - before[name][0] + (most if used < before[name][0] else 0.0)
        for name, (used, most) in after.items()
        if name in before
    )
