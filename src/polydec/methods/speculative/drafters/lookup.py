"""Copy what followed the last tokens when they stood in the text before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.calibration import ChanceCalibration
from polydec.methods.speculative.drafters._windows import TokenWindowIndex
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

PRIOR = (0.24, 0.5, 0.65, 0.72, 0.75, 0.8, 0.82, 0.86, 0.9)
"""How often what followed an n-gram of length 1, 2, … comes back, before anything is known of this
text: measured on answers of SmolLM2-135M-Instruct to questions, corrections and code edits. It
counts as much as TRUST trials."""
TRUST = 4.0
LENGTHS = 17
"""Matches have 1 to LENGTHS - 1 tokens."""


@dataclass(frozen=True)
class LookupDrafter:
    """Prompt lookup: find an earlier occurrence of the last n tokens, and propose what followed it.

    n goes from max_ngram down to min_ngram. The budget bounds the length, and so does, where it is
    not 0, growth times n: a longer match is copied further. A token's `chance` is the rate at which
    matches of its length (each copied token makes the match longer by one) were right in this
    output so far.

    Attributes:
        max_ngram: Longest match that is looked for, 1 to 16. Default 3.
        min_ngram: Shortest match, 1 to max_ngram. Default 1.
        first: Whether to take the earliest occurrence; else the latest. Default: the latest.
        loop: Whether to go on copying from the copy's own start where it reaches the end of the
            text; else it stops there. Default: it goes on.
        growth: Tokens of a copy for each token of the match, 1 to 16. 0: copies as long as the
            budget. Default 0.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` where no n-gram comes back.
    Source: Saxena, "Prompt lookup decoding" (2023).
    """

    max_ngram: int = 3
    min_ngram: int = 1
    first: bool = False
    loop: bool = True
    growth: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.max_ngram <= 16:
            raise RequestError(f"max_ngram is {self.max_ngram}: it must lie in 1 to 16")
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise RequestError(
                f"min_ngram is {self.min_ngram}: it must lie in 1 to max_ngram, which is {self.max_ngram}"
            )
        if not 0 <= self.growth <= 16:
            raise RequestError(
                f"growth is {self.growth}: it must lie in 0 (copies of the full depth) to 16"
            )

    def open_guess(self, prompt: Sequence[int], session: Session) -> LookupGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, which has read the prompt.
        """
        windows = TokenWindowIndex(tuple(range(self.max_ngram, self.min_ngram - 1, -1)), self.first)
        windows.extend_by_tokens(prompt)
        return LookupGuess(self, windows, ChanceCalibration(LENGTHS, TRUST))


@dataclass(frozen=True)
class LookupGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        windows: The text so far, the pending root included, and where its windows stood.
        rates: By length of a match, how often the token after it came back.
    """

    config: LookupDrafter
    windows: TokenWindowIndex
    rates: ChanceCalibration

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def longest_match(self) -> tuple[int, int]:
        """(n, where it goes on) of the longest n-gram at the end that stood before.

        (0, 0) for none.
        """
        return next(self.windows.window_matches(), (0, 0))

    def match_chance(self, n: int) -> float:
        """How often a match of this length is right."""
        n = min(n, self.config.max_ngram)
        return self.rates.cell_chance(n, PRIOR[min(n, len(PRIOR)) - 1])

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Copy what followed the longest match.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain. The root alone where nothing matches.
        """
        text = self.windows.text
        most = min(budget.depth, budget.nodes)
        n, start = self.longest_match()
        if not n:
            return Draft.chain_draft(root)
        if self.config.growth:
            length = min(most, self.config.growth * n)
        else:
            length = most
        copied = text[start : start + length]
        if self.config.loop:
            # The end of the text is where the copy began: from there it repeats itself, as a text
            # in a loop does.
            copied = [text[start + i % (len(text) - start)] for i in range(length)]
        # Each copied token lengthens the match by one.
        chance = (1.0, *[self.match_chance(n + i) for i in range(len(copied))])
        return Draft.certain_tree((root, *copied), range(-1, len(copied)), chance)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written, and count whether matches were right.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        for x in verdict.written_tokens(draft):
            # A match is judged at every token, whether it was copied or not.
            n, start = self.longest_match()
            if n:
                self.rates.add_cases(n, self.windows.text[start] == x)
            self.windows.extend_by_tokens((x,))

    def fork_guess(self, session: Session, choice: int | None = None) -> LookupGuess:
        """A guess with its own copy of the text.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return LookupGuess(self.config, self.windows.fork(), self.rates.copy())

    def close(self) -> None:
        pass
