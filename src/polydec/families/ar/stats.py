"""What draft and verify counts."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from polydec.core.types import Draft
from polydec.families.ar.types import Verdict


@dataclass(frozen=True)
class DraftStats:
    """passes: scores of the target; drafts: those with a draft; drafted and accepted: nodes, bonus tokens left out;
    accepted_at[d]: drafts of which at least d + 1 levels were accepted; tried_at[d]: drafts that had such a level; first:
    tokens that the first pass gave; expected: nodes that the proposers thought would be accepted, where all of them said their
    chances. masked: tokens at which rules took other tokens away; kept: summed over these, the log-probability that the model
    gave to what was left; least: the lowest of them."""
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

    def without(self, kept: Sequence[float]) -> DraftStats:
        """With more tokens at which rules took some away; kept: of each the log-probability of what was left."""
        if not kept:
            return self
        return replace(self, masked=self.masked + len(kept), kept=self.kept + sum(kept), least=min(self.least, *kept))

    def seen(self, draft: Draft, verdict: Verdict, new: int) -> DraftStats:
        """One more pass, which gave `new` tokens."""
        first = self.first if self.passes else new
        if len(draft) == 1:
            return replace(self, passes=self.passes + 1, first=first)
        deepest, got = max((draft.depth[c] for below in draft.children for c in below), default=0), len(verdict.path)
        drafted = sum(map(len, draft.children))
        expected = None
        if self.expected is not None and (draft.chance is not None or not drafted):
            expected = self.expected + draft.expected
        return DraftStats(
            self.passes + 1, self.drafts + (drafted > 0), self.drafted + drafted, self.accepted + got,
            _added(self.accepted_at, (1,) * got + (0,) * (deepest - got)), _added(self.tried_at, (1,) * deepest),
            first, expected, self.masked, self.kept, self.least)

    def plus(self, other: DraftStats) -> DraftStats:
        """Both together: of two answers, or of two parts of one."""
        expected = None if self.expected is None or other.expected is None else self.expected + other.expected
        return DraftStats(
            self.passes + other.passes, self.drafts + other.drafts, self.drafted + other.drafted,
            self.accepted + other.accepted, _added(self.accepted_at, other.accepted_at),
            _added(self.tried_at, other.tried_at), self.first + other.first, expected,
            self.masked + other.masked, self.kept + other.kept, min(self.least, other.least))

    def metrics(self) -> dict[str, Any]:
        """Mean acceptance length is 1 + accepted / drafts; a rate is None where nothing was drafted. Where a constraint or
        another mask was on: log_mass_kept, by how much the text is likelier than under the model alone (its logarithm,
        negative); and least_log_mass_kept, the lowest of one token."""
        known = self.drafted and self.expected is not None
        bent = {"log_mass_kept": self.kept, "least_log_mass_kept": self.least} if self.masked else {}
        return {
            **bent,
            "mean_acceptance_length": 1 + self.accepted / self.drafts if self.drafts else 1.0,
            "draft_acceptance_rate": self.accepted / self.drafted if self.drafted else None,
            "expected_tokens_per_pass": 1 + (self.expected or 0.0) / self.passes if known else None,
        }


def _added(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))
