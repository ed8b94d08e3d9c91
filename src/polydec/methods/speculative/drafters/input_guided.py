"""Go on copying a source text, and find the place again after the output has left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.calibration import ChanceCalibration
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

LONGEST = 3
"""A place is looked for by the last 1 to LONGEST tokens of the output."""
LONGEST_COPY = 1024
"""Most tokens that may be copied at a time."""
PRIOR = (0.35, 0.55, 0.65, 0.75, 0.8, 0.85, 0.88, 0.9, 0.95)
"""The chance of the next source token after 0 (a guess), 1, 2, … tokens that agreed, worth TRUST
trials."""
TRUST = 4.0
LOST = 3
"""How many tokens after a divergence the place is still guessed, and how many tokens such a guess
copies at most."""


@dataclass(frozen=True)
class InputGuidedDrafter:
    """Propose the rest of a source from where the output stands in it.

    The source is prompt[start:stop]. While the output repeats it, the copy goes on. After a
    divergence the place is looked for as published: by the last token of the output if it stands in
    the source once, else by the last two, else the last three; nothing is proposed where they do
    not occur or stay ambiguous. `chance` is the running rate of source tokens that came after as
    many agreed.

    Attributes:
        start: Where the source begins in the prompt; negative: counted from its end. Default 0.
        stop: Where it ends, likewise. None: with the prompt.
        near: Whether the place that was left is used as well: of several occurrences of the last
            three, two or one tokens take the one nearest to it, ahead of it on a tie; where there
            is none, guess for three tokens that as many source tokens were replaced as were
            written. Default: it is not.
        eager: Whether to begin with the source's first token, for spans that are just the text to
            be rewritten. Default: not.
        block: Most tokens of a copy, 1 to LONGEST_COPY (as published: all of the rest). Default 10.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` where the output shares no token with the source.
    Source: Ge, Xia, Sun, Chen, Wei, "Lossless acceleration for seq2seq generation with aggressive
    decoding" (2022), its input-guided half; for decoder-only models a span of the prompt stands in
    for the encoder's input. `near` is ours.
    """

    start: int = 0
    stop: int | None = None
    near: bool = False
    eager: bool = False
    block: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.block <= LONGEST_COPY:
            raise RequestError(f"block is {self.block}: it must lie in 1 to {LONGEST_COPY}")
        start = self.start
        stop = self.stop
        if stop is not None and (stop == 0 or (stop <= start and (stop < 0) == (start < 0))):
            raise RequestError(f"stop is {stop}: it must lie behind start, which is {start}")

    def open_guess(self, prompt: Sequence[int], session: Session) -> InputGuidedGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, with an index of the source's n-grams.
        """
        source = tuple(prompt[self.start : self.stop])
        ends = dict[tuple[int, ...], list[int]]()
        # Where each n-gram of 1 to LONGEST tokens ends in the source.
        for end in range(1, len(source) + 1):
            for n in range(1, min(LONGEST, end) + 1):
                ends.setdefault(source[end - n : end], []).append(end)
        return InputGuidedGuess(
            self,
            source,
            ends,
            SourceAlignment(0 if self.eager else None),
            ChanceCalibration(len(PRIOR), TRUST),
        )


@dataclass
class SourceAlignment:
    """Where the output stands in the source.

    Attributes:
        at: Index of the source token that should come next. None: unknown.
        agreed: How many tokens came as expected before it.
        lost: How many tokens were written since the place was left.
        last: The latest tokens of the output, LONGEST at most.
    """

    at: int | None
    agreed: int = 0
    lost: int = 0
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class InputGuidedGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        source: Token ids of the source.
        ends: For each n-gram of the source, the places where it ends.
        place: Where the output stands.
        rates: By tokens that agreed, how often the next one did.
    """

    config: InputGuidedDrafter
    source: tuple[int, ...]
    ends: dict[tuple[int, ...], list[int]]
    place: SourceAlignment
    rates: ChanceCalibration

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def expected_token(self) -> tuple[int | None, int]:
        """(index of the source token that is proposed next, how many tokens agreed before it)."""
        p = self.place
        if p.at is None or not p.lost:
            at = p.at
        # As many source tokens are taken to be replaced as were written.
        elif self.config.near and p.lost <= LOST:
            at = p.at + p.lost
        else:
            at = None
        if at is not None and at < len(self.source):
            return (at, p.agreed)
        return (None, 0)

    def push_token(self, token: int) -> None:
        """Move the place on by one more token of the output."""
        p = self.place
        at, agreed = self.expected_token()
        p.last = (*p.last, token)[-LONGEST:]
        if at is not None and self.source[at] == token:
            p.at = at + 1
            p.agreed = agreed + 1
            p.lost = 0
            return
        # The token was not the expected one: the place is looked for anew.
        if self.config.near and p.at is not None:
            match = self._nearest()
        else:
            match = self._unique()
        if match is not None:
            p.at = match[0]
            p.agreed = match[1]
            p.lost = 0
        # The place is kept through a mismatch: what differs may be one word of a copy.
        elif self.config.near and p.at is not None:
            p.agreed = 0
            p.lost = p.lost + 1
        else:
            p.at = None
            p.agreed = 0
            p.lost = 0

    def _unique(self) -> tuple[int, int] | None:
        """(place after it, n) of the shortest n-gram at the output's end that is unique.

        Unique is an n-gram that stands in the source once.
        """
        for n in range(1, len(self.place.last) + 1):
            ends = self.ends.get(self.place.last[-n:], ())
            if len(ends) == 1:
                return ends[0], n
            # A longer n-gram with this end cannot occur either.
            if not ends:
                break
        return None

    def _nearest(self) -> tuple[int, int] | None:
        """(place after it, n) of the longest known n-gram at the output's end.

        Of its occurrences it is the one nearest to the place that was left.
        """
        left = (self.place.at or 0) + self.place.lost + 1
        for n in range(len(self.place.last), 0, -1):
            ends = self.ends.get(self.place.last[-n:])
            # A single token is common: alone it counts only where it is unique, or stands close to
            # the place that was left.
            if ends and (n > 1 or len(ends) == 1 or min(abs(e - left) for e in ends) <= LOST):
                return min(ends, key=lambda e: (abs(e - left), -e)), n
        return None

    def agreement_chance(self, agreed: int) -> float:
        """The chance of the next source token, after so many tokens that agreed."""
        i = min(agreed, len(PRIOR) - 1)
        return self.rates.cell_chance(i, PRIOR[i])

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Copy the source from the place on.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain. The root alone where the place is not known.
        """
        at, agreed = self.expected_token()
        if at is None:
            return Draft.chain_draft(root)
        # A guessed place copies a few tokens only.
        most = min(self.config.block, budget.depth, budget.nodes)
        if self.place.lost:
            most = min(most, LOST)
        copied = self.source[at : at + most]
        return Draft.certain_tree(
            (root, *copied),
            range(-1, len(copied)),
            (1.0, *[self.agreement_chance(agreed + i) for i in range(len(copied))]),
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Move the place on, and count whether expected tokens came.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        for x in verdict.written_tokens(draft):
            at, agreed = self.expected_token()
            if at is not None:
                self.rates.add_cases(min(agreed, len(PRIOR) - 1), self.source[at] == x)
            self.push_token(x)

    def fork_guess(self, session: Session, choice: int | None = None) -> InputGuidedGuess:
        """A guess with its own place and counts.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        p = self.place
        return InputGuidedGuess(
            self.config,
            self.source,
            self.ends,
            SourceAlignment(p.at, p.agreed, p.lost, p.last),
            self.rates.copy(),
        )

    def close(self) -> None:
        pass
