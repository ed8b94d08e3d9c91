"""Passes of which none is planned with an earlier one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class UnplannedFeeding:
    """The refresh rule decides what every pass feeds."""

    def planned_positions(self, state: Any) -> None:
        """Return no plan.

        Args:
            state: Not read.
        """
        return None
