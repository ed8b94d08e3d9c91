"""A masked-diffusion model drafts.

The gaps after the text are filled in one pass, each from its own law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.law import float64_probabilities, normalise_log_weights
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class FilledGapsDrafter:
    """Fill gaps after the text in one pass, each token drawn from its gap's own law.

    It puts as many gaps after the text as the budget allows, after the model's boundary mark where
    it was trained with one, and lets the model look at them once. So the chain is drawn token by
    token from laws that do not depend on the tokens before.

    Where the text is longer than the denoiser's context its end is read, and then nothing is kept.

    Attributes:
        denoiser: A masked-diffusion model of the target's vocabulary.
        heat: Temperature of the draft, 0 or 1e-5 to 1000; 0 is the likeliest token of each gap,
            proposed with certainty. Default 1.
        keep: Whether the keys and values of the text stay as they were when it was last seen, so
            that a pass feeds what is new alone. The text saw other gaps then; that decides what is
            accepted, never what is said. Default: they do not.
        COLDEST: Least temperature above 0.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from.
    Reduces to: `diffusion` for weight = 1 and top = 1, where heat is 0 and there is no boundary
    mark; `nothing` for a budget of 0.
    Source: DEER (2025). Its pseudo-code goes on behind a rejected token, which is not exact; every
    verifier here stops.
    """

    denoiser: Denoiser
    heat: float = 1.0
    keep: bool = False

    COLDEST: ClassVar[float] = 1e-5

    def __post_init__(self) -> None:
        if self.heat != 0 and not self.COLDEST <= self.heat <= 1000:
            raise RequestError(
                f"heat is {self.heat}: it must be 0 or lie in {self.COLDEST} to 1000"
            )

    def open_guess(self, prompt: Sequence[int], session: Session) -> FilledGapsGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess.
        """
        return FilledGapsGuess(self, list(prompt), CachedBoard())


@dataclass
class CachedBoard:
    """The denoiser's board of the last pass.

    Attributes:
        board: Its session. None: there is none.
        seen: How many tokens of the text it has seen.
    """

    board: CanvasSession | None = None
    seen: int = 0

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
        self.board = None
        self.seen = 0


@dataclass(frozen=True)
class FilledGapsGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        text: Token ids so far, the pending root included.
        kept: The board of the last pass.
    """

    config: FilledGapsDrafter
    text: list[int] = field(default_factory=list[int])
    kept: CachedBoard = field(default_factory=CachedBoard)

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Fill the gaps once, and draw each token from its gap's law.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Gap i draws at ``rng.child_stream("draft", position, i)``.

        Returns:
            The chain.
        """
        denoiser = self.config.denoiser
        if denoiser.boundary is None:
            mark = ()
        else:
            mark = (denoiser.boundary,)
        most = min(budget.depth, budget.nodes, denoiser.context - 1 - len(mark))
        if most < 1:
            return Draft.chain_draft(root)
        known = (*self.text[-(denoiser.context - most - len(mark)) :], *mark)
        room = most
        # A block-causal model sees gaps to the end of the current block, or those of the next one.
        if denoiser.block:
            room = min(most, -len(known) % denoiser.block or denoiser.block)
        looked_RV = await self._look(known, len(mark), room)
        # Marks of the model's own stand after the vocabulary and are never drawn.
        logw_RV = looked_RV[:, : denoiser.vocab.size]
        if not self.config.heat:
            logp_R, token_R = normalise_log_weights(logw_RV).max(-1)
            return Draft.certain_tree(
                (root, *token_R.tolist()), range(-1, room), (1.0, *logp_R.exp().tolist())
            )
        # Gap i's row is the law of the token there, whatever is drawn in the gaps before it.
        law = [normalise_log_weights(row_V / self.config.heat) for row_V in logw_RV]
        tokens = [
            rng.child_stream("draft", position, i).draw_categorical(float64_probabilities(row_V))
            for i, row_V in enumerate(law)
        ]
        return Draft.chain_draft(root, tokens, law)

    async def _look(self, known: Sequence[int], marks: int, room: int) -> Tensor:
        """Log-weights of the gaps after what is known, shape ``[room, V]``.

        The last ids of what is known are so many marks.
        """
        denoiser = self.config.denoiser
        kept = self.kept
        whole = len(known) - marks == len(self.text)
        # A board can go on only with a text that begins as it did before.
        if not (self.config.keep and whole):
            kept.close()
        canvas: Canvas = (*known, *(None,) * room)
        # A board that is kept must have room for the longest canvas.
        board = kept.board or denoiser.open_canvas(
            denoiser.context if self.config.keep else len(canvas)
        )
        first = kept.seen
        rows = range(len(known), len(canvas))
        # Stored before the pass, so that a pass that fails or is given up closes it.
        kept.board = board
        try:
            logw_RV = await board.score_canvas(canvas, rows, range(first, len(canvas)))
        except BaseException:
            kept.close()
            raise
        if self.config.keep and whole:
            kept.seen = len(known) - marks
        else:
            kept.close()
        return logw_RV

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.text.extend(verdict.written_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> FilledGapsGuess:
        """A guess with its own copy of the text, which begins with a board of its own.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return FilledGapsGuess(self.config, list(self.text), CachedBoard())

    def close(self) -> None:
        self.kept.close()
