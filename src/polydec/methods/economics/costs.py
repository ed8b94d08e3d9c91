"""What passes cost: a table that is measured beforehand, so that no text depends on a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from polydec.base.errors import RequestError

MOST = 4096
"""Positions of the largest pass that is thought of."""
KEEP = 0.95
"""Of the speed of the largest passes, what smaller ones must keep."""
FILL = 6
"""Positions of a pass for each answer that is being written: one or a few are its own, the others
go to prompts.
"""
QUICK = 40.0
"""Milliseconds of a pass that nobody minds. Prompts that come in drop by drop keep few answers in a
pass, and these cost more each.
"""


@dataclass(frozen=True)
class PassCosts:
    """Costs of passes on one machine, in milliseconds.

    The default is a machine on which every further row costs a fifth of a pass.

    Attributes:
        rows_ms: Time of a pass of the target over 1, 2, 3, … rows of one sequence without context;
            at least two entries, all above 0.
        draft_ms: Time of one token of the draft model with all that belongs to it, at least 0.
        more_ms: What 1,000 tokens of context add to each of the first of `rows_ms`; as many entries
            or fewer, at least 0.
        beside_ms: What a further sequence adds to a pass besides its rows, at least 0.
        crowd: Factor on the cost of a sequence's context where several share a pass, whose keys and
            values a processor's caches do not hold together; at least 1.
        tree_ms: What the first level and each further one of the trained drafter's tree take. None
            where there is none or nobody knows.
    """

    rows_ms: tuple[float, ...] = (1.0, 1.2)
    draft_ms: float = 0.1
    more_ms: tuple[float, ...] = ()
    beside_ms: float = 0.0
    crowd: float = 1.0
    tree_ms: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.rows_ms) < 2 or not all(t > 0 for t in self.rows_ms):
            raise RequestError(f"rows_ms is {self.rows_ms}: it must hold two or more times above 0")
        if len(self.more_ms) > len(self.rows_ms) or not all(t >= 0 for t in self.more_ms):
            raise RequestError(
                f"more_ms is {self.more_ms}: it must hold at most {len(self.rows_ms)} times of 0 or more"
            )
        if not self.draft_ms >= 0:
            raise RequestError(f"draft_ms is {self.draft_ms}: it must be at least 0")
        if not self.beside_ms >= 0:
            raise RequestError(f"beside_ms is {self.beside_ms}: it must be at least 0")
        if self.tree_ms is not None and not all(t >= 0 for t in self.tree_ms):
            raise RequestError(f"tree_ms is {self.tree_ms}: both must be at least 0")
        if not self.crowd >= 1:
            raise RequestError(f"crowd is {self.crowd}: it must be at least 1")

    def pass_ms(self, rows: int, sequences: int = 1, context: float = 0.0) -> float:
        """Return the time of a pass, in milliseconds.

        Args:
            rows: Rows of all sequences together, at least 1.
            sequences: Sequences that share the pass. Default 1.
            context: Mean tokens of context before the rows of a sequence; its rows read them
                together.
        """
        # The rows themselves, as if there were no context.
        ms = extrapolate_table_entry(self.rows_ms, rows)
        # The context: every sequence reads its own, at the price of its own number of rows.
        if self.more_ms:
            crowd = self.crowd if sequences > 1 else 1.0
            ms += (
                sequences
                * crowd
                * extrapolate_table_entry(self.more_ms, max(1, round(rows / sequences)))
                * context
                / 1000
            )
        return ms + (sequences - 1) * self.beside_ms

    def request_share(self, rows: int, peers: int = 1, context: int = 0) -> float:
        """Return the time of a pass that falls to one request, in milliseconds.

        Args:
            rows: Rows that each request brings.
            peers: Requests that share the pass. Default 1.
            context: Tokens of context of each request.
        """
        return self.pass_ms(rows * peers, peers, context) / peers

    def draft_pays(self, right: float) -> bool:
        """Return whether a drafted token costs less, with its row, than it saves.

        `right` says how often a token of the draft model is accepted, 0 to 1.
        """
        return self.draft_ms + self.request_share(2) - self.request_share(
            1
        ) < right * self.request_share(1)

    def pass_budget(self, answers: int) -> int:
        """Return the positions of one pass while answers are written and prompts fill it up.

        As few as give KEEP of the positions a millisecond that the largest passes give, so that
        nobody waits longer for a token than that needs; at least what takes QUICK, and FILL times
        as many as answers, so that prompts get on; at most MOST (Sarathi-Serve, Agrawal et al.
        2024: the token budget).
        """
        return min(MOST, max(self._large, self._quick, FILL * answers))

    @cached_property
    def _large(self) -> int:
        """The smallest pass that does KEEP of the positions a millisecond that the largest do."""
        # Throughput of the largest pass, in positions a millisecond.
        best = MOST / extrapolate_table_entry(self.rows_ms, MOST)
        return next(
            (
                m
                for m in range(1, MOST)
                if m / extrapolate_table_entry(self.rows_ms, m) >= KEEP * best
            ),
            MOST,
        )

    @cached_property
    def _quick(self) -> int:
        """Return the largest pass without context that takes no longer than QUICK, or 1."""
        return next(
            (m for m in range(1, MOST) if extrapolate_table_entry(self.rows_ms, m + 1) > QUICK),
            MOST,
        )

    @property
    def doubling(self) -> float:
        """Tokens of context with which a further row of a large pass costs twice as much."""
        most = len(self.more_ms)
        if most:
            more = (extrapolate_table_entry(self.more_ms, most) - self.more_ms[0]) / max(
                most - 1, 1
            )
        else:
            more = 0.0
        row = self._further(most)
        # The context at which what it adds to a row equals the row's own cost.
        if more > 0.0 and row > 0.0:
            return 1000 * row / more
        return inf

    def _further(self, rows: int) -> float:
        """What a row costs in a pass of about so many, one row's fixed cost left out."""
        return (extrapolate_table_entry(self.rows_ms, max(rows, 2)) - self.rows_ms[0]) / (
            max(rows, 2) - 1
        )


def extrapolate_table_entry(known: Sequence[float], m: int) -> float:
    """Return an entry of a table; beyond it the last ten entries go on in a straight line.

    Args:
        known: The table, at least one entry.
        m: Number of the entry, counted from 1.
    """
    if m <= len(known):
        return known[m - 1]
    # The slope is taken over several entries, since a single measured difference is noisy; it is
    # never negative.
    back = min(10, len(known) - 1)
    if back == 0:
        return known[0]
    return known[-1] + max(0.0, (known[-1] - known[-1 - back]) / back) * (m - len(known))
