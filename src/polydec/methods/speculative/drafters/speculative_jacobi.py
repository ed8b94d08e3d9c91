"""The target draws a window of tokens, and tests every one of them in the next pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.laws.shapers.row_ends import RowEndRule
from polydec.methods.speculative.loop.draws import categorical_pick
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

MOST_WINDOW = 64
"""Places of a window at most."""


@dataclass(frozen=True)
class SpeculativeJacobiDrafter:
    """Jacobi iteration for sampling: draw a window of tokens anew after every pass, each from its row.

    A pass gives a row at every place of the window. Those places that it did not decide are drawn
    from these rows, and keep them: the next pass tests each token against the row that it was drawn
    from. Rows behind a token that was refused were computed behind another text, which makes them
    worse proposals and no other law. A token is tested once: what was not accepted is drawn anew.

    A place that no pass has seen yet copies the token `back` places before it, with certainty: in a
    picture the one on the left (1) or the one above (the width of a row). With `drawn` it is drawn anew
    from the row of that place instead, where a pass has seen it. With `back` 0 it is drawn uniformly
    of the tokens that may be written at all.

    Attributes:
        window: Places that are drawn at once, 1 to 64, within the budget. Default 16.
        back: How far back a new place looks, 0 or more. Default 1.
        drawn: Whether a new place draws from the row of the place that it looks at. Default False.
        begin: Token id behind which a picture stands in a text; elsewhere nothing is drawn ahead.
            Default None: all of the answer is a picture.
        end: Token id with which a picture ends. Default None: it ends with the answer.
        rows: Where rows of the picture end with a mark. The mark is proposed there, as the law holds
            nothing else, so no pass is spent on it; new places do not copy it. Default None: nowhere.

    Exact: law, under a verifier that tests drawn candidates. Where rows are certain (greedy decoding)
    the tokens are, too, and nothing is drawn.
    Reduces to: `jacobi` with another first guess where rows are certain; `nothing` at depth 0.
    Source: Teng et al., "Accelerating auto-regressive text-to-image generation with training-free
    speculative Jacobi decoding" (2024).
    """

    unexercised: ClassVar[Mapping[str, str]] = {"siblings": "a place has one token"}
    window: int = 16
    back: int = 1
    drawn: bool = False
    begin: int | None = None
    end: int | None = None
    rows: RowEndRule | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.window <= MOST_WINDOW:
            raise RequestError(f"window is {self.window}: it must lie in 1 to {MOST_WINDOW}")
        if self.back < 0:
            raise RequestError(f"back is {self.back}: it must be at least 0")

    def is_in_picture(self, text: Sequence[int]) -> bool:
        """Whether the next token belongs to a picture.

        Args:
            text: Token ids so far.

        Returns:
            Whether the last mark among them begins a picture, or all of the answer is one.
        """
        if self.begin is None:
            return True
        # The nearest mark decides: texts may hold several pictures.
        for token in reversed(text):
            if token in (self.begin, self.end):
                return token == self.begin
        return False

    def open_guess(self, prompt: Sequence[int], session: Session) -> SpeculativeJacobiGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, whose window is empty.
        """
        return SpeculativeJacobiGuess(self, list(prompt), [], None, len(prompt))


@dataclass
class SpeculativeJacobiGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The drafter.
        text: Token ids so far, the root included.
        laws: Of the next places, as far as a pass saw them: the row that a token is drawn from, or
            the only token that can stand there.
        even_V: The uniform law over what may be written, as the last pass knew it. None: no pass has
            given a row.
        begun: Tokens of the prompt, behind which the picture begins. Default 0.
    """

    config: SpeculativeJacobiDrafter
    text: list[int]
    laws: list[Tensor | int]
    even_V: Tensor | None
    begun: int = 0

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Draw the window.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels and nodes.
            rng: Random stream of the text; places are drawn at
                ``rng.child_stream("draft", position, place)``.

        Returns:
            The chain, in which drawn tokens have the rows that they were drawn from.
        """
        count = min(self.config.window, budget.depth, budget.nodes)
        # Texts gain little from this, so between pictures one token is written a pass.
        if not self.config.is_in_picture(self.text):
            count = 0
        text = list(self.text)
        laws: list[Tensor | None] = [None]
        for place in range(count):
            law = self._law_of_place(place, text, laws)
            if isinstance(law, Tensor):
                pick = categorical_pick(rng.child_stream("draft", position, place))
                text.append(pick(law))
                laws.append(law)
            else:
                text.append(law)
                laws.append(None)
        return Draft(
            (root, *text[len(self.text) :]),
            tuple(range(-1, count)),
            tuple(DrawKind.CERTAIN if law is None else DrawKind.INDEPENDENT for law in laws),
            tuple(laws),
        )

    def _law_of_place(
        self, place: int, text: Sequence[int], laws: Sequence[Tensor | None]
    ) -> Tensor | int:
        """What a place of the window is drawn from, or its only token. text: what stands before it;
        laws: what the window's places before it were drawn from, behind None for the root."""
        rows = self.config.rows
        # What the layout says needs neither a pass nor a draw.
        if rows is not None and rows.ends_row(len(text) - self.begun):
            return rows.mark
        if place < len(self.laws):
            return self.laws[place]
        back = self.config.back
        if back == 0 and self.even_V is not None:
            return self.even_V
        # Whatever a token is drawn from is what it is tested against, so any row will do.
        if self.config.drawn and 0 < back <= place:
            row_V = laws[1 + place - back]
            if row_V is not None:
                return row_V
        at = max(0, len(text) - max(1, back))
        # A mark says nothing of the places beside it.
        while rows is not None and at and text[at] == rows.mark:
            at -= 1
        return text[at]

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Keep the rows of the places that the pass did not decide.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        done = len(verdict.path)
        self.text.extend(verdict.written_tokens(draft))
        self.laws.clear()
        # A draft of somebody else's is a tree whose nodes are no places of this window.
        if verdict.path != tuple(range(1, done + 1)) or draft.parent != tuple(
            range(-1, len(draft) - 1)
        ):
            return
        # The row of node `done` has decided its place; those behind it are of places still open.
        for node in range(done + 1, len(draft)):
            only = scores.certain_token(node)
            self.laws.append(scores.logprob_row(node) if only is None else only)
        rows = self.config.rows
        seen = len(self.text) + len(draft) - 2 - done
        marked = rows is not None and rows.ends_row(seen - self.begun)
        if self.config.back == 0 and not marked and scores.certain_token(len(draft) - 1) is None:
            row_V = scores.logprob_row(len(draft) - 1)
            self.even_V = normalise_log_weights((row_V > NEG_INF).double().log())

    def fork_guess(self, session: Session, choice: int | None = None) -> SpeculativeJacobiGuess:
        """A guess with its own copy of text and window.

        Args:
            session: Not used.
            choice: Not used.

        Returns:
            The copy.
        """
        return replace(self, text=list(self.text), laws=list(self.laws))

    def close(self) -> None:
        pass
