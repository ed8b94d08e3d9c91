"""As long a draft as pays, by measured costs and what was accepted so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.economics.calibration import ChanceCalibration, bin_of
from polydec.methods.economics.costs import PassCosts
from polydec.methods.economics.goodput import while_it_pays
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

BINS = 10
KEPT = 0.97


@dataclass(frozen=True)
class GoodputTrack:
    """What a text has taught so far.

    Attributes:
        rates: How many tokens were accepted, by the probability that the draft gave them. Never
            written to: each round has a copy.
        first: Running rate at which first tokens of a draft are accepted, 0 to 1.
        tokens: Tokens written, decaying from round to round.
        ms: Milliseconds that they cost, decaying likewise.
        idle: Rounds since the last draft.
    """

    rates: ChanceCalibration
    first: float
    tokens: float
    ms: float
    idle: int = 0


@dataclass(frozen=True)
class GoodputPolicy:
    """Go on below a token while the next one is expected to save more time than it costs.

    Nothing is drafted where even the first token does not pay, except in one round out of
    `explore`.

    A token to which the draft gives probability q is accepted with (accepted + trust · q) / (tried
    + trust), counted over tokens of about the same q; the next one is expected to do as well, with
    a doubt. An accepted token saves what a token has cost so far; it costs its row in the target's
    pass and its own time in the draft model.

    Attributes:
        costs: Measured costs of passes and of the draft model.
        depth: Most levels, 0 to 64. Default 10.
        context: Tokens in the cache for which a pass is priced, 0 or more. Default 256.
        trust: How many trials the draft's own probability counts as, above 0. Default 8.
        explore: Every how many rounds a draft is tried although it does not pay, at least 1.
            Default 16.

    Exact: law: where a draft stops depends on what was drawn, what is kept does not.
    Reduces to: plain decoding, but for the exploring rounds, where the draft is never right;
    `fixed` where nothing costs.
    Source: Liu et al., "TurboSpec: closed-loop speculation control" (2024), with the confidence of
    each token.
    """

    costs: PassCosts
    depth: int = 10
    context: int = 256
    trust: float = 8.0
    explore: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")
        if self.context < 0:
            raise RequestError(f"context is {self.context}: it must be at least 0")
        if not self.trust > 0.0:
            raise RequestError(f"trust is {self.trust}: it must be above 0")
        if self.explore < 1:
            raise RequestError(f"explore is {self.explore}: it must be at least 1")

    def start_state(self) -> GoodputTrack:
        # A guess to begin with: ten tokens, each of which cost a pass, so that the first rounds do
        # not swing the average.
        return GoodputTrack(ChanceCalibration(BINS, self.trust), 0.5, 10.0, 10.0 * self._pass(0))

    def draft_budget(self, state: GoodputTrack) -> DraftBudget:
        # What an accepted token saves, in milliseconds.
        worth = state.ms / state.tokens
        if state.first * worth <= self._row(0) and state.idle + 1 < self.explore:
            return DraftBudget(0, 0)
        go_on = while_it_pays(
            lambda q: state.rates.cell_chance(bin_of(q, BINS), q), state.first, worth, self._row
        )
        return DraftBudget(self.depth, self.depth, go_on=go_on, graded=True)

    def observe_round(self, state: GoodputTrack, draft: Draft, verdict: Verdict) -> GoodputTrack:
        """Count this round.

        Args:
            state: State before this round.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            Another record with this round in it.
        """
        got = len(verdict.path)
        rates = state.rates.copy()
        first = state.first
        drafted = sum(map(len, draft.children))
        accepted = set(verdict.path)
        # Only children of accepted nodes were decided by the verifier; nothing is known of the
        # others.
        for node in (0, *verdict.path):
            for c in draft.children[node]:
                if draft.chance is None:
                    q = 1.0
                else:
                    q = draft.chance[c]
                rates.add_cases(bin_of(q, BINS), c in accepted)
        # A running mean of whether the first token was right.
        if drafted:
            first += 0.1 * ((got > 0) - first)
        # The round cost a pass over the root and all drafted nodes, and one token of the draft
        # model a level.
        ms = self._pass(drafted) + max(draft.depth) * self.costs.draft_ms
        return replace(
            state,
            rates=rates,
            first=first,
            tokens=KEPT * (state.tokens + got + 1),
            ms=KEPT * (state.ms + ms),
            idle=0 if drafted else state.idle + 1,
        )

    def _pass(self, drafted: int) -> float:
        return self.costs.request_share(1 + drafted, 1, self.context)

    def _row(self, drafted: int) -> float:
        """What one more drafted token costs."""
        return self._pass(drafted + 1) - self._pass(drafted) + self.costs.draft_ms
