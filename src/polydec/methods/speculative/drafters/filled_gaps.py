"""A masked-diffusion model drafts: the gaps behind the text are filled in one pass, each from its own law."""

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
    """Puts as many gaps behind the text as the budget allows, behind the model's boundary mark where it was trained with one,
    and lets the model look at them once. Each gap's token is drawn from the law of that gap, so the chain is drawn token by
    token from laws that do not depend on the tokens before.

    denoiser: of the target's vocabulary; heat: temperature of the draft, 0: the likeliest token of each gap, proposed with
    certainty; keep: the keys and values of the text stay as they were when it was last seen, and a pass feeds what is new (the
    text saw other gaps then; decides what is accepted, never what is said).

    Where the text is longer than the denoiser's context its end is read, and then nothing is kept.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from.
    Reduces to: `diffusion` for weight = 1 and top = 1, where heat is 0 and there is no boundary mark; `nothing` for a budget
    of 0.
    Source: DEER (2025). Its pseudo-code goes on behind a rejected token, which is not exact; every verifier here stops.
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

    def open(self, prompt: Sequence[int], session: Session) -> FilledGapsGuess:
        return FilledGapsGuess(self, list(prompt), CachedBoard())


@dataclass
class CachedBoard:
    """The board of the last pass, and how much of the text it has seen. None: there is none."""

    board: CanvasSession | None = None
    seen: int = 0

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
        self.board = None
        self.seen = 0


@dataclass(frozen=True)
class FilledGapsGuess(DraftGuess):
    """text: everything so far, the pending root included."""

    config: FilledGapsDrafter
    text: list[int] = field(default_factory=list[int])
    kept: CachedBoard = field(default_factory=CachedBoard)

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        denoiser = self.config.denoiser
        if denoiser.boundary is None:
            mark = ()
        else:
            mark = (denoiser.boundary,)
        most = min(budget.depth, budget.nodes, denoiser.context - 1 - len(mark))
        if most < 1:
            return Draft.chain(root)
        known = (*self.text[-(denoiser.context - most - len(mark)) :], *mark)
        room = most
        # A block-causal model drafts to the end of its block.
        if denoiser.block:
            room = min(most, -len(known) % denoiser.block or denoiser.block)
        looked_RV = await self._look(known, len(mark), room)
        # A mark of the model's own is never drawn.
        logw_RV = looked_RV[:, : denoiser.vocab.size]
        if not self.config.heat:
            logp_R, token_R = normalise_log_weights(logw_RV).max(-1)
            return Draft.certain(
                (root, *token_R.tolist()), range(-1, room), (1.0, *logp_R.exp().tolist())
            )
        law = [normalise_log_weights(row_V / self.config.heat) for row_V in logw_RV]
        tokens = [
            rng.at("draft", position, i).categorical(float64_probabilities(row_V))
            for i, row_V in enumerate(law)
        ]
        return Draft.chain(root, tokens, law)

    async def _look(self, known: Sequence[int], marks: int, room: int) -> Tensor:
        """Log-weights of the gaps behind what is known, whose last ids are so many marks."""
        denoiser = self.config.denoiser
        kept = self.kept
        whole = len(known) - marks == len(self.text)
        if not (self.config.keep and whole):
            kept.close()
        canvas: Canvas = (*known, *(None,) * room)
        board = kept.board or denoiser.open(denoiser.context if self.config.keep else len(canvas))
        first = kept.seen
        rows = range(len(known), len(canvas))
        kept.board = board
        try:
            logw_RV = await board.score(canvas, rows, range(first, len(canvas)))
        except BaseException:
            kept.close()
            raise
        if self.config.keep and whole:
            kept.seen = len(known) - marks
        else:
            kept.close()
        return logw_RV

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.text.extend(verdict.tokens(draft))

    def fork(self, session: Session, choice: int | None = None) -> FilledGapsGuess:
        """A twin begins with a board of its own."""
        return FilledGapsGuess(self.config, list(self.text), CachedBoard())

    def close(self) -> None:
        self.kept.close()
