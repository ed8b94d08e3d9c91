"""The loop of denoising, once: pass after pass until the text ends, with what is counted, noted and told of each.

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
    """How far an answer has come. canvas: now; state: the unmasker's; block: where gaps are filled next, empty where the answer
    is whole; step: passes of this block so far; passes: of the answer; begin: the answer's first position; ends: ids that end
    it; final: tokens before this position stay as they are, None: all before the first gap do."""

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
    """One edit of a pass. look: the laws of the pass, as a trace shows them; feed: the positions that ran for them; edit: what
    is written; spot: where that leads; parts: the edits that it was made of, one after the other, each with the laws that it
    was chosen under (empty: the edit itself, under `look`)."""

    look: UnmaskerView
    feed: Sequence[int]
    edit: TextEdit
    spot: FillingState
    parts: tuple[tuple[UnmaskerView, TextEdit], ...] = ()


@dataclass(frozen=True)
class CanvasPass:
    """What one pass comes to. steps: its edits, at least one; those behind the end of the text are left out. fed: positions
    that ran for it, whatever for."""

    steps: tuple[FillingStep, ...]
    fed: int


class CanvasPasses(Protocol):
    """How the passes of one answer go. It holds the boards and sessions of that answer, and what it remembers from pass to
    pass."""

    async def next(self, spot: FillingState) -> CanvasPass:
        """One pass from this spot, whose block has a gap: where the last step of the pass before led to."""
        ...

    def close(self) -> None:
        """Give back what it holds; called once."""
        ...


async def fill_canvases(
    vocab: TokenVocabulary,
    request: Request,
    rng: Streams,
    into: Transcript,
    start: Callable[[Request, frozenset[int]], FillingState],
    begin: Callable[[Request, Rng], CanvasPasses],
) -> list[Result]:
    """All choices of a request at once, each with passes of its own: a prompt sees the answer, so nothing can be shared.

    start: where an answer begins; begin: its passes, with its randomness. They are closed however that ends, those of an
    answer that is whole at once: what they hold is free for those that go on.
    """
    unfinished = dict[int, CanvasPasses]()

    async def write(text: AnswerText, choice: int) -> Result:
        try:
            return await _filled(vocab, start(request, text.ends), unfinished[choice], text, into)
        finally:
            unfinished.pop(choice).close()

    try:
        texts = {choice: into.open(choice) for choice in request.choices}
        for choice in texts:
            unfinished[choice] = begin(request, rng(choice))
        return await gather_coroutines(*(write(text, choice) for choice, text in texts.items()))
    finally:
        for passes in unfinished.values():  # of answers that were never begun
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
    told = into.told(UnmaskedEvent)
    stats = DenoiseStats()
    new, notes = _preset(text, spot)
    while text.finish_reason is None:
        passed = await passes.next(spot)
        taken = list[FillingStep]()
        opened = 0
        for step in passed.steps:
            if not step.edit.write:
                raise RequestError("the unmasker filled no gap: it would go on for ever")
            opened += not spot.step
            if asked is not None:
                for look, edit in step.parts or ((step.look, step.edit),):
                    notes |= _noted(look, edit, asked)
            new += text.edit(step.edit, final=step.spot.final, notes=notes)
            taken.append(step)
            spot = step.spot
            if text.finish_reason is not None:
                break
        stats = stats.seen(sum(len(s.edit.write) for s in taken), passed.fed, new, opened)
        new = 0
        if into.told(RemaskedEvent) and (back := _remasked(vocab, text, taken[-1])).position:
            into.on(back)
        if told:
            into.on(_together([_unmasked(vocab, text, step) for step in taken]))
    return text.result(stats)


def _preset(text: AnswerText, spot: FillingState) -> tuple[int, dict[int, TokenLogprob]]:
    """Write what the request gives of the answer; how many of these tokens are final at once, and their log-probabilities."""
    known = tuple((i, x) for i, x in enumerate(spot.canvas) if i >= spot.begin and x is not None)
    notes = {i: TokenLogprob(x, 0.0, 0.0, ()) for i, x in known}
    return text.edit(TextEdit(write=known), notes=notes) if known else 0, notes


def _noted(look: UnmaskerView, edit: TextEdit, k: int) -> dict[int, TokenLogprob]:
    """Of what is written its log-probabilities, by position, with the k likeliest of the model."""
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
    """What a trace is told of a step: of what was written the model's own probabilities."""
    look = step.look
    write = step.edit.write
    pieces = tuple(_piece(vocab, x) for _, x in write)
    at = {r: i for i, r in enumerate(look.rows)}
    written = {p for p, _ in write}
    sure = tuple(float(look.logp_RV[at[p], x].exp()) for p, x in write)
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
    """What a trace is told of the gaps that the last step of a pass left, of which the pass has a law."""
    look = step.look
    written = {p for p, _ in step.edit.write}
    at = {r: i for i, r in enumerate(look.rows)}
    left = [
        p
        for p in gap_positions(look.canvas, look.block.start, look.block.stop)
        if p in at and p not in written
    ]
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
    """What a trace is told of a pass: all its steps as one, counted from the first, with what is left after the last."""
    return replace(
        events[-1],
        step=events[0].step,
        position=sum((e.position for e in events), ()),
        confidence=sum((e.confidence for e in events), ()),
        piece=sum((e.piece for e in events), ()),
    )
