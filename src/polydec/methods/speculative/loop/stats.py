"""What draft and verify counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import Verdict


@dataclass(frozen=True)
class DraftStats:
    """passes: scores of the target; drafts: those with a draft; drafted and accepted: nodes, bonus tokens left out;
    accepted_at[d]: drafts of which at least d + 1 levels were accepted; tried_at[d]: drafts that had such a level; first:
    tokens that the first pass gave; expected: nodes that the proposers thought would be accepted, where all of them said their
    chances. masked: tokens at which rules took other tokens away; kept: summed over these, the log-probability that the model
    gave to what was left; least: the lowest of them. judged: accepted nodes that a judge kept in the place of the target's own
    token."""

    passes: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()
    tried_at: tuple[int, ...] = ()
    first: int = 0
    expected: float | None = field(default=0.0, compare=False)
    masked: int = 0
    kept: float = 0.0
    least: float = 0.0
    judged: int = 0

    def plus(self, other: DraftStats) -> DraftStats:
        """Both together: of two answers, or of two parts of one."""
        if self.expected is None or other.expected is None:
            expected = None
        else:
            expected = self.expected + other.expected
        return DraftStats(
            self.passes + other.passes,
            self.drafts + other.drafts,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            _added(self.accepted_at, other.accepted_at),
            _added(self.tried_at, other.tried_at),
            self.first + other.first,
            expected,
            self.masked + other.masked,
            self.kept + other.kept,
            min(self.least, other.least),
            self.judged + other.judged,
        )

    def metrics(self) -> dict[str, Any]:
        """Mean acceptance length is 1 + accepted / drafts; a rate is None where nothing was drafted. Where a constraint or
        another mask was on: log_mass_kept, by how much the text is likelier than under the model alone (its logarithm,
        negative); and least_log_mass_kept, the lowest of one token. Where a judge kept tokens: judged, how many, and
        judged_share of what was accepted."""
        known = self.drafted and self.expected is not None
        if self.masked:
            bent = {"log_mass_kept": self.kept, "least_log_mass_kept": self.least}
        else:
            bent = {}
        if self.judged:
            judged = {"judged": self.judged, "judged_share": self.judged / self.accepted}
        else:
            judged = {}
        return {
            **bent,
            **judged,
            "mean_acceptance_length": 1 + self.accepted / self.drafts if self.drafts else 1.0,
            "draft_acceptance_rate": self.accepted / self.drafted if self.drafted else None,
            "expected_tokens_per_pass": 1 + (self.expected or 0.0) / self.passes if known else None,
        }


class DraftCount:
    """The same figures while an answer is being written: they change with every pass."""

    __slots__ = (
        "_accepted",
        "_accepted_at",
        "_drafted",
        "_drafts",
        "_expected",
        "_first",
        "_judged",
        "_kept",
        "_passes",
        "_tried_at",
    )

    def __init__(self) -> None:
        self._passes = self._drafts = self._drafted = self._accepted = self._first = 0
        self._judged = 0
        self._accepted_at = list[int]()
        self._tried_at = list[int]()
        self._expected: float | None = 0.0
        self._kept = list[float]()

    def see(self, draft: Draft, verdict: Verdict, new: int) -> None:
        """One more pass, which gave `new` tokens."""
        if not self._passes:
            self._first = new
        self._passes += 1
        if len(draft.token) == 1:
            return
        probe = draft.probe
        got = len(verdict.path)
        nodes = [i for i in range(1, len(draft.token)) if probe is None or not probe[i]]
        deepest = max((draft.depth[i] for i in nodes), default=0)
        self._drafts += bool(nodes)
        self._drafted += len(nodes)
        self._accepted += got
        self._judged += len(verdict.judged)
        more = [0] * (deepest - len(self._tried_at))
        self._tried_at += more
        self._accepted_at += more
        for d in range(deepest):
            self._tried_at[d] += 1
            self._accepted_at[d] += d < got
        if nodes and draft.chance is None:
            self._expected = None
        elif self._expected is not None:
            self._expected += draft.expected

    def mask(self, kept: Sequence[float]) -> None:
        """More tokens at which rules took some away; kept: of each the log-probability of what was left."""
        self._kept += kept

    @property
    def stats(self) -> DraftStats:
        """What was counted so far."""
        return DraftStats(
            self._passes,
            self._drafts,
            self._drafted,
            self._accepted,
            tuple(self._accepted_at),
            tuple(self._tried_at),
            self._first,
            self._expected,
            len(self._kept),
            sum(self._kept),
            min(self._kept, default=0.0),
            self._judged,
        )


def _added(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))
