"""The loop of denoising: pass after pass until the text ends, with statistics and trace events.

What a method does differently is a value, its `CanvasPasses`: how one pass goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.events import RemaskedEvent, UnmaskedEvent
from polydec.methods.diffusion.loop.stats import DenoiseStats
from polydec.methods.diffusion.loop.types import UnmaskerView, gap_positions


@dataclass(frozen=True)
class FillingState:
    """How far an answer has come.

    Attributes:
        canvas: Prompt and answer as they are now; None is a gap.
        state: State of the unmasker.
        block: Positions where gaps are filled next; empty where the answer is complete.
        step: Passes of this block so far.
        passes: Passes of the answer so far.
        begin: First position of the answer.
        ends: Token ids that end the answer.
        final: Tokens before this position stay as they are. None: all before the first gap do.
    """

    canvas: Canvas
    state: Any
    block: range
    step: int
    passes: int
    begin: int
    ends: frozenset[int]
    final: int | None = None


@dataclass(frozen=True)
class FillingStep:
    """One edit of a pass, and the state that it leads to.

    Attributes:
        look: Laws of the pass, as a trace shows them.
        feed: Positions that ran for them.
        edit: Tokens that are written.
        spot: State after the edit.
        parts: Edits that this one is made of, in the order they were made, each with the laws that
            it was chosen under. Empty: the edit itself, under `look`.
    """

    look: UnmaskerView
    feed: Sequence[int]
    edit: TextEdit
    spot: FillingState
    parts: tuple[tuple[UnmaskerView, TextEdit], ...] = ()


@dataclass(frozen=True)
class CanvasPass:
    """What one pass gives.

    Attributes:
        steps: Its edits, at least one; those after the end of the text are left out.
        fed: Positions that ran for the pass, for whatever purpose.
    """

    steps: tuple[FillingStep, ...]
    fed: int


class CanvasPasses(Protocol):
    """How the passes of one answer go.

    It holds the sessions of that answer, and what a method remembers from pass to pass.
    """

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        """Run one pass.

        `spot` is where the last step of the pass before led to; its block has a gap.
        """
        ...

    def close(self) -> None:
        """Close the sessions that are held; called once."""
        ...


async def fill_canvases(
    vocab: TokenVocabulary,
    request: Request,
    rng: Streams,
    into: Transcript,
    start: Callable[[Request, frozenset[int]], FillingState],
    begin: Callable[[Request, Rng], CanvasPasses],
) -> list[Result]:
    """Fill the canvases of all choices of a request concurrently.

    Each choice has passes of its own: positions of the prompt attend to the answer, so nothing can
    be shared. The passes of an answer are closed as soon as it is complete, and all of them however
    the call ends.

    Args:
        vocab: Vocabulary of the model; trace events spell tokens with it.
        request: What is asked: prompt token ids, number of answers, limits.
        rng: Random stream of each choice, by the choice's number.
        into: Record of the request, which gets the tokens, the statistics and the trace events.
        start: Makes the state before the first pass from the request and the ids that end an
            answer.
        begin: Makes the passes of one answer from the request and the answer's random stream.

    Returns:
        One result for each choice of the request, in order.
    """
    unfinished = dict[int, CanvasPasses]()

    async def write_choice(text: AnswerText, choice: int) -> Result:
        """Write one choice, and close its passes when it is done.

        Args:
            text: Record of this answer.
            choice: Number of the choice.

        Returns:
            The finished answer.
        """
        # Passes hold a session of the model each; it is given back as soon as its answer ends.
        try:
            return await _filled(vocab, start(request, text.ends), unfinished[choice], text, into)
        finally:
            unfinished.pop(choice).close()

    try:
        # Texts and passes are made for all choices first, so that they share the first pass.
        texts = {choice: into.open_answer(choice) for choice in request.choices}
        for choice in texts:
            unfinished[choice] = begin(request, rng(choice))
        return await gather_coroutines(
            *(write_choice(text, choice) for choice, text in texts.items())
        )
    finally:
        # What is left belongs to answers whose writing never began.
        for passes in unfinished.values():
            passes.close()


async def _filled(
    vocab: TokenVocabulary,
    spot: FillingState,
    passes: CanvasPasses,
    text: AnswerText,
    into: Transcript,
) -> Result:
    """Pass after pass until the text ends."""
    asked = into.request.logprobs
    told = into.is_observed(UnmaskedEvent)
    stats = DenoiseStats()
    new, notes = _preset(text, spot)
    while text.finish_reason is None:
        passed = await passes.next_pass(spot)
        taken = list[FillingStep]()
        opened = 0
        for step in passed.steps:
            # A pass without a write would leave the loop as it was, for ever.
            if not step.edit.write:
                raise RequestError("the unmasker filled no gap: it would go on for ever")
            # The first step of a block counts the block as begun.
            opened += not spot.step
            # Log-probabilities are noted when a token is written: later passes have other laws.
            if asked is not None:
                for look, edit in step.parts or ((step.look, step.edit),):
                    notes |= _noted(look, edit, asked)
            new += text.edit_tokens(step.edit, final=step.spot.final, notes=notes)
            taken.append(step)
            spot = step.spot
            if text.finish_reason is not None:
                break
        # Tokens become final in order of position, often several passes after they were written.
        stats = stats.with_pass(sum(len(s.edit.write) for s in taken), passed.fed, new, opened)
        new = 0
        if into.is_observed(RemaskedEvent) and (back := _remasked(vocab, text, taken[-1])).position:
            into.on(back)
        if told:
            into.on(_together([_unmasked(vocab, text, step) for step in taken]))
    return text.finished_answer(stats)


def _preset(text: AnswerText, spot: FillingState) -> tuple[int, dict[int, TokenLogprob]]:
    """Write what the request gives of the answer.

    Returns how many of these tokens are final at once, and their log-probabilities.
    """
    known = tuple((i, x) for i, x in enumerate(spot.canvas) if i >= spot.begin and x is not None)
    notes = {i: TokenLogprob(x, 0.0, 0.0, ()) for i, x in known}
    return text.edit_tokens(TextEdit(write=known), notes=notes) if known else 0, notes


def _noted(look: UnmaskerView, edit: TextEdit, k: int) -> dict[int, TokenLogprob]:
    """Return log-probabilities of what is written, by position, with the k likeliest tokens."""
    out = dict[int, TokenLogprob]()
    at = {r: i for i, r in enumerate(look.rows)}
    for position, token in edit.write:
        i = at[position]
        row_V = look.logp_RV[i]
        top = ()
        if k:
            value_K, token_K = row_V.topk(min(k, len(row_V)))
            top = tuple(zip(map(int, token_K), map(float, value_K)))
        out[position] = TokenLogprob(
            token, float(look.shaped_RV[i][token]), float(row_V[token]), top
        )
    return out


def _unmasked(vocab: TokenVocabulary, text: AnswerText, step: FillingStep) -> UnmaskedEvent:
    """Make the trace event of a step, with the model's own probability of each token."""
    look = step.look
    write = step.edit.write
    pieces = tuple(_piece(vocab, x) for _, x in write)
    at = {r: i for i, r in enumerate(look.rows)}
    written = {p for p, _ in write}
    sure = tuple(float(look.logp_RV[at[p], x].exp()) for p, x in write)
    # Gaps of the block that this pass had and did not fill.
    left = sum(
        r not in written for r in gap_positions(look.canvas, look.block.start, look.block.stop)
    )
    return UnmaskedEvent(
        text.choice or 0,
        look.step,
        (look.block.start, look.block.stop),
        (step.feed[0], step.feed[-1] + 1),
        tuple(p for p, _ in write),
        sure,
        left,
        pieces,
    )


def _remasked(vocab: TokenVocabulary, text: AnswerText, step: FillingStep) -> RemaskedEvent:
    """Make the trace event of the gaps that a pass's last step left, as far as laws are known."""
    look = step.look
    written = {p for p, _ in step.edit.write}
    at = {r: i for i, r in enumerate(look.rows)}
    left = [
        p
        for p in gap_positions(look.canvas, look.block.start, look.block.stop)
        if p in at and p not in written
    ]
    # The likeliest token of each gap, as a guess that was not written.
    best = [look.logp_RV[at[p]].max(-1) for p in left]
    return RemaskedEvent(
        text.choice or 0,
        look.step,
        tuple(left),
        tuple(float(sure.exp()) for sure, _ in best),
        tuple(_piece(vocab, int(token)) for _, token in best),
    )


def _piece(vocab: TokenVocabulary, token: int) -> str:
    words = vocab.words
    if words is None:
        return ""
    return (words.pieces[token] or b"").decode("utf-8", "replace")


def _together(events: Sequence[UnmaskedEvent]) -> UnmaskedEvent:
    """Merge the events of a pass's steps into one.

    It counts from the first step, with what is left after the last.
    """
    return replace(
        events[-1],
        step=events[0].step,
        position=sum((e.position for e in events), ()),
        confidence=sum((e.confidence for e in events), ()),
        piece=sum((e.piece for e in events), ()),
    )
