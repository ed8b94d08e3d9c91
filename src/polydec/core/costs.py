"""What passes cost: a table that is measured beforehand, so that no text depends on a clock."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """rows_ms: milliseconds of a pass of the target over 1, 2, 3, … rows, at least two entries, all above 0; draft_ms: of one
    token of the draft model with all that belongs to it, at least 0.

    The default is a machine on which every further row costs a fifth of a pass.
    """
    rows_ms: tuple[float, ...] = (1.0, 1.2)
    draft_ms: float = 0.1

    def __post_init__(self) -> None:
        if len(self.rows_ms) < 2 or not all(t > 0 for t in self.rows_ms):
            raise ValueError(f"rows_ms is {self.rows_ms}: it must hold two or more times above 0")
        if not self.draft_ms >= 0:
            raise ValueError(f"draft_ms is {self.draft_ms}: it must be at least 0")

    def share(self, rows: int, peers: int = 1) -> float:
        """Milliseconds that fall to one of `peers` requests which bring `rows` rows each to a pass. Beyond the table the last
        ten entries go on in a straight line."""
        m, known = rows * peers, self.rows_ms
        if m <= len(known):
            return known[m - 1] / peers
        back = min(10, len(known) - 1)
        slope = max(0.0, (known[-1] - known[-1 - back]) / back)
        return (known[-1] + slope * (m - len(known))) / peers
