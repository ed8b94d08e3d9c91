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
    """Counts of draft and verify for one answer, or summed over several.

    Attributes:
        passes: Scores of the target.
        drafts: Passes that had a draft.
        drafted: Drafted nodes, probes left out.
        accepted: Accepted nodes; bonus tokens are not among them.
        accepted_at: At index d, drafts of which at least d + 1 levels were accepted.
        tried_at: At index d, drafts that had at least d + 1 levels.
        first: Tokens that the first pass gave.
        expected: Nodes that the proposers thought would be accepted. None: some of them did not
            say.
        masked: Tokens at which rules took other tokens away.
        kept: Over these tokens, the sum of the log-probabilities that the model gave to all that
            the rules left.
        least: The lowest of these log-probabilities, 0 where there is none.
        judged: Accepted nodes that a judge put in place of the target's own token.
    """

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

    def plus_stats(self, other: DraftStats) -> DraftStats:
        """Both together: of two answers, or of two parts of one."""
        # A sum is known only where both sides said their chances.
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
        """Figures for a reader, by name.

        Returns:
            ``mean_acceptance_length`` is 1 + accepted / drafts. ``draft_acceptance_rate`` is None
            where nothing was drafted. ``passes_without_draft`` counts passes in which nothing was
            drafted: there was nothing to propose, or it was not worth its cost. Where a constraint
            or another mask was on: ``log_mass_kept``, the sum over tokens of the logarithm of the
            probability that the model gave to allowed tokens (0 or less), and
            ``least_log_mass_kept``, its lowest summand. Where a judge accepted tokens:
            ``judged``, how many, and ``judged_share``, their share of the accepted ones.
        """
        # Nothing is expected where nothing was drafted, or where a proposer stated no chances.
        known = self.drafted and self.expected is not None
        # Only what a method does is reported, so that other methods show no zeros.
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
            "passes_without_draft": self.passes - self.drafts,
        }


class DraftCount:
    """The same counts while an answer is being written: they change with every pass."""

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

    def count_pass(self, draft: Draft, verdict: Verdict, new: int) -> None:
        """Count one more pass of the target.

        Args:
            draft: The draft that it scored.
            verdict: What was accepted of the draft.
            new: How many tokens the answer took from the pass.
        """
        if not self._passes:
            self._first = new
        self._passes += 1
        if len(draft.token) == 1:
            return
        probe = draft.probe
        got = len(verdict.path)
        # Probes are fed but can never be accepted, so they count neither as drafted nor as a level.
        nodes = [i for i in range(1, len(draft.token)) if probe is None or not probe[i]]
        deepest = max((draft.depth[i] for i in nodes), default=0)
        self._drafts += bool(nodes)
        self._drafted += len(nodes)
        self._accepted += got
        self._judged += len(verdict.judged)
        # Both lists grow to the deepest level that was drafted so far.
        more = [0] * (deepest - len(self._tried_at))
        self._tried_at += more
        self._accepted_at += more
        for d in range(deepest):
            self._tried_at[d] += 1
            self._accepted_at[d] += d < got
        # One draft without stated chances makes the sum unknown for the rest of the answer.
        if nodes and draft.chance is None:
            self._expected = None
        elif self._expected is not None:
            self._expected += draft.expected

    def count_masked(self, kept: Sequence[float]) -> None:
        """Count tokens at which rules took others away.

        Args:
            kept: Of each such token, the log-probability that the model gave to all that the rules
                left there.
        """
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
