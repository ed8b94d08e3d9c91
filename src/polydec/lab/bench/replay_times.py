"""How long a run would take that was made again without its model.

A pass costs what passes of the record cost, another one what the table of costs says of it on a
machine as quick as then. What stands between passes is what stood there in the record, and what
this run's drafter needs more than the record's, which ran again just now. A pass of another model
costs what it cost in the record, or what the table says at the record's pace: in a replay its
weights lie in the processor's caches, where a larger model empties them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from polydec.core.trace import PassedEvent
from polydec.lab.bench.recorded_target import ReplayRound, ReplayRun
from polydec.methods.economics.costs import PassCosts

ENOUGH = 5
"""Passes of so many rows after which their own times are believed."""


@dataclass(frozen=True)
class RecordClock:
    """What a record says of time, from its second round on: the pass of the first one fed the end
    of the prompt as well.

    Attributes:
        passes: Passes of the model, one a round, in order.
        rounds: What each of these rounds drafted and accepted.
        others: Passes of other models between them.
    """

    passes: tuple[PassedEvent, ...]
    rounds: tuple[ReplayRound, ...]
    others: tuple[PassedEvent, ...] = ()

    @staticmethod
    def of_rounds(
        rounds: Sequence[ReplayRound], passes: Sequence[PassedEvent], target: str
    ) -> RecordClock | None:
        """Build the clock of an answer that was alone in its passes.

        Args:
            rounds: The rounds of the recorded answer, in order.
            passes: The recorded passes of all models, in order; those that fed the prompt come
                first.
            target: Name of the model that was decoded.

        Returns:
            The clock; None where the answer shared its passes, or where the record does not have
            them.
        """
        mine = [p for p in passes if p.model == target]
        # The last passes of the model belong to the rounds; the first round is left out.
        if len(rounds) > 1:
            last = mine[len(mine) - len(rounds) + 1 :]
        else:
            last = []
        if not last or len(mine) < len(rounds) or any(p.queries != 1 for p in last):
            return None
        others = (p for p in passes if p.model != target and p.start >= last[0].start)
        return RecordClock(tuple(last), tuple(rounds[1:]), tuple(others))

    @property
    def seconds(self) -> float:
        """From the second round's pass to the end of the last."""
        return self.passes[-1].start + self.passes[-1].seconds - self.passes[0].start

    @property
    def between(self) -> float:
        """Seconds between two passes, in the middle, without passes of other models: Python and
        sampling."""
        # From the end of one pass to the start of the next, without passes of a draft model in it.
        gaps = [
            b.start
            - a.start
            - a.seconds
            - sum(p.seconds for p in self.others if a.start <= p.start < b.start)
            for a, b in pairwise(self.passes)
        ]
        if gaps:
            return max(0.0, median(gaps))
        return 0.0

    def predict_seconds(self, own: ReplayRun, other: ReplayRun, costs: PassCosts | None) -> float:
        """Predict the seconds of decoding of another run.

        Args:
            own: The recorded setting, replayed on this machine.
            other: The run in question, replayed on the same machine.
            costs: What passes cost, as the record has it; None: unknown, and a pass of more rows
                than were recorded costs as much as the largest recorded one.

        Returns:
            Seconds from the second round's pass to the end of the last.
        """
        behind = other.rounds[1:]
        # The two replays differ in their drafters alone: so does the time between passes, a round.
        drafting = other.seconds / len(other.rounds) - own.seconds / len(own.rounds)
        # These very passes were recorded: only the time between them may differ.
        if tuple(behind) == self.rounds:
            return max(0.0, self.seconds + drafting * (len(self.rounds) - 1))
        rest = max(0.0, self.between + drafting)
        drafts = other.others * self._draft(costs)
        return self._passes(behind, costs) + drafts + rest * max(0, len(behind) - 1)

    def _draft(self, costs: PassCosts | None) -> float:
        """Seconds of a pass of another model."""
        if self.others:
            return fmean(p.seconds for p in self.others)
        known = PassCosts() if costs is None else costs
        # The table has what a pass takes where little else runs: whatever made the record's own
        # passes take longer than they stand there makes those of a draft model take longer, too.
        return known.draft_ms * fmean(self._paces(known))

    def _paces(self, costs: PassCosts) -> list[float]:
        """Seconds that each recorded pass took for a millisecond of the table."""
        return [
            p.seconds / costs.request_share(r.drafted + 1, 1, r.position)
            for p, r in zip(self.passes, self.rounds, strict=True)
        ]

    def _passes(self, rounds: Sequence[ReplayRound], costs: PassCosts | None) -> float:
        if costs is None:
            return self._drawn(rounds)
        paces = self._paces(costs)
        # By number of rows: how much slower this machine was then.
        slower = defaultdict[int, list[float]](list)
        for pace, r in zip(paces, self.rounds, strict=True):
            slower[r.drafted + 1].append(pace)
        # Rows with few recorded passes take the average ratio.
        usual = fmean(paces)
        known = {rows: fmean(every) for rows, every in slower.items() if len(every) >= ENOUGH}
        return sum(
            costs.request_share(r.drafted + 1, 1, r.position) * known.get(r.drafted + 1, usual)
            for r in rounds
        )

    def _drawn(self, rounds: Sequence[ReplayRound]) -> float:
        """By a line through the medians of what was recorded, level beyond it."""
        rows = defaultdict[int, list[float]](list)
        for p, r in zip(self.passes, self.rounds, strict=True):
            rows[r.drafted + 1].append(p.seconds)
        # `np.interp` is level outside the recorded numbers of rows.
        at = sorted(rows)
        took = np.interp([r.drafted + 1 for r in rounds], at, [median(rows[n]) for n in at])
        return float(took.sum())
