"""The longest suffix of the text that stood before, of any length, and what followed it."""

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
"""How often the only token that followed a match of length 1, 2, … comes back, before anything is
known of this text: measured on answers of SmolLM2-135M-Instruct to questions, corrections and code
edits."""


@dataclass(frozen=True)
class SuffixDrafter:
    """Match the longest suffix of the text that occurred before, and propose what followed it.

    It is looked for in prompt and output, and in a store; continuations are proposed likeliest
    first, as a tree. A continuation seen c times, the share s of all that followed a match of
    length n, has chance s · right[n + log2 c], where right says how often continuations without a
    rival came back in this output (with a prior of weight `trust`); its own continuation is a match
    of length n + 1. Nodes are taken in order of the product of chances along their path until it
    falls below `floor`: a long, frequent or unanimous match is copied far, a short or divided one a
    little.

    Attributes:
        min_match: Shortest match in tokens, 1 to 64. Default 1.
        floor: Least chance of a path, 0 to 1. Default 0.3.
        width: Most children of a node, 1 to 16. Default 2.
        trust: How many trials the prior is worth, above 0. Default 4.
        store: Sequences to copy from, where they have a longer match than the text itself. None:
            there are none.
        add: Whether the text of each request that ends is added to the store. Default: it is not.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` where no token comes back, and with floor 1; the `lookup` of the longest
    run with floor 0, width 1.
    Source: Hu et al., "SAM decoding: speculative decoding via suffix automaton" (2024); Oliaro et
    al., "SuffixDecoding" (2024), for length by counts.
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

    def open_guess(self, prompt: Sequence[int], session: Session) -> SuffixGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, which has read the prompt.
        """
        guess = SuffixGuess(
            self, SuffixAutomaton(), [], [0, 0], ChanceCalibration(len(PRIOR), self.trust)
        )
        guess.extend_by_tokens(prompt)
        return guess


@dataclass(frozen=True)
class SuffixGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        automaton: Suffix automaton of the text.
        text: Token ids so far, the pending root included.
        at: State and length of the match in the store.
        rates: By length of a match, how often its best continuation came, of how often it should
            have.
    """

    config: SuffixDrafter
    automaton: SuffixAutomaton
    text: list[int]
    at: list[int]
    rates: ChanceCalibration

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def extend_by_tokens(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text, and move the match in the store on."""
        for x in tokens:
            self.automaton.extend_by_token(x)
            self.text.append(x)
            # The match in the store moves along with the text token by token.
            if self.config.store is not None:
                self.at[:] = self.config.store.automaton.next_match(self.at[0], self.at[1], x)

    def longest_match(self) -> tuple[SuffixAutomaton, int, int]:
        """(automaton, state, length) of the longest suffix that stood before, in text or store."""
        state, length = self.automaton.match
        if self.config.store is not None and self.at[1] > length:
            store = self.config.store.automaton
            # The store may have grown since, which may have split the state.
            return store, store.state_of(self.at[0], self.at[1]), self.at[1]
        return self.automaton, state, length

    def match_chance(self, length: int, count: int, total: int) -> float:
        """The chance of a continuation.

        Args:
            length: Length of the match, in tokens, at least 1.
            count: How often the continuation came, at least 1.
            total: How often any continuation came.

        Returns:
            Its share, times how often matches like this were right.
        """
        cell = _index(length, count)
        # At most the share itself: rates may exceed 1, since divided continuations count as parts
        # of a trial.
        return count / total * min(self.rates.cell_chance(cell, PRIOR[cell]), 1.0)

    def after(
        self, automaton: SuffixAutomaton, state: int, length: int
    ) -> list[tuple[float, int, tuple[int, int]]]:
        """Children of a match.

        Args:
            automaton: The automaton that has the match.
            state: State of the match.
            length: Length of the match, in tokens.

        Returns:
            Chance, token, and state and length of its own match, likeliest first. None where the
            match is too short.
        """
        if length < self.config.min_match:
            return []
        best = automaton.followers_of(state)
        # Shares are of all continuations, also of those beyond the width.
        total = sum(n for n, _, _ in best)
        follow = automaton.next[state]
        return [
            (self.match_chance(length, n, total), x, (follow[x], length + 1))
            for n, _, x in best[: self.config.width]
        ]

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow the tree of the likeliest continuations.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The tree.
        """
        automaton, state, length = self.longest_match()
        return likeliest_first(
            root,
            (state, length),
            lambda at, _: self.after(automaton, *automaton.resumed_match(*at)),
            max(self.config.floor, budget.floor),
            budget,
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written, and count whether best continuations came.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        for x in verdict.written_tokens(draft):
            automaton, state, length = self.longest_match()
            if length and (best := automaton.followers_of(state)):
                count, _, likeliest = best[0]
                # A continuation with share s counts as s of a trial: a right one then raises the
                # rate to what unanimous matches would have.
                self.rates.add_cases(
                    _index(length, count), likeliest == x, count / sum(n for n, _, _ in best)
                )
            self.extend_by_tokens((x,))

    def fork_guess(self, session: Session, choice: int | None = None) -> SuffixGuess:
        """A guess with its own copy of the text.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        # The store is shared; the match in it is this text's own.
        return SuffixGuess(
            self.config, self.automaton.copy(), list(self.text), list(self.at), self.rates.copy()
        )

    def close(self) -> None:
        if self.config.add and self.config.store is not None:
            self.config.store.add_sequence(self.text)


def _index(length: int, count: int) -> int:
    """The cell of a match: its length plus log2 of the count, as each doubling is worth a token."""
    return min(length + count.bit_length() - 1, len(PRIOR)) - 1
