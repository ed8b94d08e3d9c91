"""The longest suffix that stood in the text before, of any length, and what followed it how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.calibration import ChanceCalibration
from polydec.methods.speculative.drafters._walk import likeliest_first
from polydec.methods.speculative.drafters.automaton import SuffixAutomaton, SuffixStore
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

PRIOR = (0.28, 0.49, 0.66, 0.73, 0.77, 0.8, 0.82, 0.86, 0.93)
"""How often the only token that followed a match of length 1, 2, … comes back, before anything is known of this text:
measured on answers of SmolLM2-135M-Instruct to questions, corrections and code edits."""


@dataclass(frozen=True)
class SuffixDrafter:
    """Match the longest suffix of prompt and output that occurred before, in them or in a store, and propose what followed
    it, likeliest first, as a tree.

    A continuation seen c times, the share s of all that followed a match of length n, has chance s · right[n + log2 c],
    where right says how often continuations without a rival came back in this output (with a prior of weight `trust`);
    its own continuation is a match of length n + 1. Nodes are taken in order of the product of chances along their path
    until it falls below `floor`: a long, frequent or unanimous match is copied far, a short or divided one a little.

    min_match: 1 to 64; floor: 0 to 1; width: 1 to 16 children a node; trust: above 0; store: sequences to copy from, where
    they hold a longer match than the text itself; add: the text of each request that ends is added to the store.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` where no token comes back, and with floor 1; the `lookup` of the longest run with floor 0, width 1.
    Source: Hu et al., "SAM decoding: speculative decoding via suffix automaton" (2024); Oliaro et al., "SuffixDecoding"
    (2024), for length by counts.
    """

    min_match: int = 1
    floor: float = 0.3
    width: int = 2
    trust: float = 4.0
    store: SuffixStore | None = None
    add: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= 64:
            raise RequestError(f"min_match is {self.min_match}: it must lie in 1 to 64")
        if not 0.0 <= self.floor <= 1.0:
            raise RequestError(f"floor is {self.floor}: it must lie in 0 to 1")
        if not 1 <= self.width <= 16:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 16")
        if not self.trust > 0.0:
            raise RequestError(f"trust is {self.trust}: it must be above 0")

    def open(self, prompt: Sequence[int], session: Session) -> SuffixGuess:
        guess = SuffixGuess(
            self, SuffixAutomaton(), [], [0, 0], ChanceCalibration(len(PRIOR), self.trust)
        )
        guess.extend(prompt)
        return guess


@dataclass(frozen=True)
class SuffixGuess(DraftGuess):
    """text: everything so far, the pending root included; automaton: of it; at: state and length of the match in the
    store; rates: by length of a match, how often its best continuation came of how often it should have."""

    config: SuffixDrafter
    automaton: SuffixAutomaton
    text: list[int]
    at: list[int]
    rates: ChanceCalibration

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def extend(self, tokens: Sequence[int]) -> None:
        for x in tokens:
            self.automaton.extend(x)
            self.text.append(x)
            if self.config.store is not None:
                self.at[:] = self.config.store.automaton.step(self.at[0], self.at[1], x)

    def match(self) -> tuple[SuffixAutomaton, int, int]:
        """(where, state, length) of the longest suffix that stood before, in the text or in the store."""
        state, length = self.automaton.match
        if self.config.store is not None and self.at[1] > length:
            store = self.config.store.automaton
            return store, store.state_of(self.at[0], self.at[1]), self.at[1]
        return self.automaton, state, length

    def chance(self, length: int, count: int, total: int) -> float:
        """Of a continuation that came `count` of `total` times after a match of this length."""
        cell = _index(length, count)
        return count / total * min(self.rates.chance(cell, PRIOR[cell]), 1.0)

    def after(
        self, automaton: SuffixAutomaton, state: int, length: int
    ) -> list[tuple[float, int, tuple[int, int]]]:
        """(chance, token, its own match) of the children of a match."""
        if length < self.config.min_match:
            return []
        best = automaton.after(state)
        total = sum(n for n, _, _ in best)
        follow = automaton.next[state]
        return [
            (self.chance(length, n, total), x, (follow[x], length + 1))
            for n, _, x in best[: self.config.width]
        ]

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        automaton, state, length = self.match()
        return likeliest_first(
            root,
            (state, length),
            lambda at, _: self.after(automaton, *automaton.resumed(*at)),
            max(self.config.floor, budget.floor),
            budget,
        )

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        for x in verdict.tokens(draft):
            automaton, state, length = self.match()
            if length and (best := automaton.after(state)):
                count, _, likeliest = best[0]
                self.rates.observe(
                    _index(length, count), likeliest == x, count / sum(n for n, _, _ in best)
                )
            self.extend((x,))

    def fork(self, session: Session, choice: int | None = None) -> SuffixGuess:
        return SuffixGuess(
            self.config, self.automaton.copy(), list(self.text), list(self.at), self.rates.copy()
        )

    def close(self) -> None:
        if self.config.add and self.config.store is not None:
            self.config.store.add(self.text)


def _index(length: int, count: int) -> int:
    return min(length + count.bit_length() - 1, len(PRIOR)) - 1
