"""Denoising: a canvas of gaps, filled in any order, some in each pass."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather
from polydec.core.protocols import Shaper
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.rng import Rng
from polydec.core.transcript import Text, Transcript
from polydec.core.types import Edit, Exactness, Vocab
from polydec.families.diffusion.endings import Whole
from polydec.families.diffusion.events import Unmasked
from polydec.families.diffusion.protocols import Board, Denoiser, Ending, Refresh, Unmasker
from polydec.families.diffusion.stats import DenoiseStats
from polydec.families.diffusion.types import Canvas, Look, filled, gaps


@dataclass(frozen=True)
class Spot:
    """How far an answer has come. canvas: now; state: the unmasker's; block: where gaps are filled next, empty where the answer
    is whole; step: passes of this block so far; passes: of the answer; begin: the answer's first position; ends: ids that end
    it."""

    canvas: Canvas
    state: Any
    block: range
    step: int
    passes: int
    begin: int
    ends: frozenset[int]


@dataclass(frozen=True)
class Denoising:
    """A decoder of the diffusion family.

    The answer's max_tokens positions stand behind the prompt as gaps, but for those that the request gives. They are filled
    block by block from the left; block: positions of one (0: the answer is one block; the last one may be shorter). Under a
    block-causal model these are parts of the model's own blocks (0: all of one). Tokens are final as soon as no gap stands
    before them. Gaps behind an end (EOS, a stop id) that was written are no part of the answer and are not filled.

    exact: whether `refresh` leaves the model's laws as they are; where not, the text is approximate. ending: finds an answer's
    end before it is written.
    """

    denoiser: Denoiser
    unmasker: Unmasker[Any]
    refresh: Refresh
    block: int = 0
    shapers: tuple[Shaper[Any], ...] = ()
    exact: bool = True
    ending: Ending = field(default_factory=Whole)

    @property
    def exactness(self) -> Exactness:
        return self.unmasker.exactness if self.exact else Exactness.APPROXIMATE

    @property
    def vocab(self) -> Vocab:
        return self.denoiser.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """All choices of a request, each on a board of its own: a prompt sees the answer, so nothing can be shared."""

        def write(board: Board, text: Text) -> Coroutine[Any, Any, Result]:
            return _write(self, board, text, rng(text.choice or 0), into)

        return await each(self.denoiser, request, into, write)

    def start(self, request: Request, ends: frozenset[int]) -> Spot:
        """Before the first pass."""
        given = request.given or (None,) * request.max_tokens
        canvas: Canvas = (*request.prompt, *given)
        return self._at(canvas, self.unmasker.start(canvas), None, 0, len(request.prompt), ends)

    def after(self, spot: Spot, edit: Edit, state: Any, last: int | None = None) -> Spot:
        """After a pass whose edit this is; last: where the answer ends, None where that is not known."""
        canvas = filled(spot.canvas, edit)[: None if last is None else last + 1 + self.ending.spare]
        return self._at(canvas, state, spot, spot.passes + 1, spot.begin, spot.ends)

    def _at(
        self,
        canvas: Canvas,
        state: Any,
        before: Spot | None,
        passes: int,
        begin: int,
        ends: frozenset[int],
    ) -> Spot:
        block, step = self._block(canvas, begin, ends), 0
        if block and (before is None or block.start != before.block.start):
            state = self.unmasker.enter(state, len(gaps(canvas, block.start, block.stop)))
        elif before is not None:
            step = before.step + 1
        return Spot(canvas, state, block, step, passes, begin, ends)

    def _block(self, canvas: Canvas, begin: int, ends: frozenset[int]) -> range:
        """The first block that has a gap, up to the first end that stands in it; empty where no gap is left to be filled."""
        end = next((i for i in range(begin, len(canvas)) if canvas[i] in ends), len(canvas))
        first = next((i for i in range(begin, end) if canvas[i] is None), None)
        if first is None:
            return range(end, end)
        own = self.denoiser.block
        low = first // own * own if own else begin
        high = min(low + own, len(canvas)) if own else len(canvas)
        size = self.block or high - low
        start = low + (first - low) // size * size
        return range(max(start, begin), min(start + size, high, end))

    def feed(self, spot: Spot, before: Canvas | None) -> Sequence[int]:
        """What the next pass feeds: under a block-causal model nothing behind its own block."""
        feed, own = (
            self.refresh.feed(spot.canvas, before, spot.block, spot.step),
            self.denoiser.block,
        )
        stop = min(len(spot.canvas), -(-spot.block.stop // own) * own) if own else len(spot.canvas)
        return feed if feed[-1] < stop else [p for p in feed if p < stop]

    def rows(self, spot: Spot, feed: Sequence[int]) -> tuple[int, ...]:
        """The gaps whose laws the next pass is asked for."""
        everywhere = self.unmasker.everywhere or self.ending.everywhere
        stop = feed[-1] + 1 if everywhere else spot.block.stop
        rows = gaps(spot.canvas, spot.block.start, stop)
        fed = feed if isinstance(feed, range) else frozenset(feed)
        return tuple(r for r in rows if r in fed)

    def look(self, spot: Spot, rows: tuple[int, ...], logw_RV: Tensor) -> Look:
        return Look(spot.canvas, spot.block, rows, logw_RV, self.shapers, spot.passes, spot.ends)


async def each(
    denoiser: Denoiser,
    request: Request,
    into: Transcript,
    write: Callable[[Board, Text], Coroutine[Any, Any, Result]],
) -> list[Result]:
    """write(board, text) for every choice, all at once; boards are closed however that ends."""
    texts, boards = [into.open(choice) for choice in request.choices], list[Board]()
    try:
        boards += [
            denoiser.open(len(request.prompt) + request.max_tokens, len(request.prompt))
            for _ in texts
        ]
        return await gather(
            *(write(board, text) for board, text in zip(boards, texts, strict=True))
        )
    finally:
        for board in boards:
            board.close()


async def _write(how: Denoising, board: Board, text: Text, rng: Rng, into: Transcript) -> Result:
    """Pass after pass until the text ends."""
    asked, told, stats, before = into.request.logprobs, into.told(Unmasked), DenoiseStats(), None
    spot = how.start(into.request, text.ends)
    new, notes = given(text, spot)
    while text.finish_reason is None:
        feed = how.feed(spot, before)
        rows = how.rows(spot, feed)
        look = how.look(spot, rows, await board.score(spot.canvas, rows, feed))
        edit, state = how.unmasker.choose(spot.state, look, rng)
        if not edit.write:
            raise RequestError("the unmasker filled no gap: it would go on for ever")
        last = how.ending.find(look, edit)
        edit = ended(look, edit, last)
        before, opened, spot = spot.canvas, not spot.step, how.after(spot, edit, state, last)
        notes |= {} if asked is None else noted(look, edit, asked)
        new += text.edit(edit, notes=notes)
        stats, new = stats.seen(len(edit.write), len(feed), new, opened), 0
        if told:
            into.on(unmasked(how, text, look, feed, edit))
    board.close()  # at once: what it holds is free for those that go on
    return text.result(stats)


def given(text: Text, spot: Spot) -> tuple[int, dict[int, TokenLogprob]]:
    """Write what the request gives of the answer; how many of these tokens are final at once, and their log-probabilities."""
    known = tuple((i, x) for i, x in enumerate(spot.canvas) if i >= spot.begin and x is not None)
    notes = {i: TokenLogprob(x, 0.0, 0.0, ()) for i, x in known}
    return text.edit(Edit(write=known), notes=notes) if known else 0, notes


def ended(look: Look, edit: Edit, last: int | None) -> Edit:
    """The edit, with the likeliest end at position `last` where there is none yet, and nothing behind it."""
    if last is None:
        return edit
    write = {p: x for p, x in edit.write if p <= last}
    if look.canvas[last] is None and write.get(last) not in look.ends:
        row_V = look.shaped_RV[look.rows.index(last)]
        write[last] = max(look.ends, key=lambda x: float(row_V[x]))
    return Edit(write=tuple(sorted(write.items())))


def unmasked(how: Denoising, text: Text, look: Look, feed: Sequence[int], edit: Edit) -> Unmasked:
    """What a trace is told of a pass: of what was written the model's own probabilities."""
    words = how.vocab.words
    pieces = tuple(
        "" if words is None else (words.pieces[x] or b"").decode("utf-8", "replace")
        for _, x in edit.write
    )
    at, written = {r: i for i, r in enumerate(look.rows)}, {p for p, _ in edit.write}
    sure = tuple(float(look.logp_RV[at[p], x].exp()) for p, x in edit.write)
    left = sum(r not in written for r in gaps(look.canvas, look.block.start, look.block.stop))
    return Unmasked(
        text.choice or 0,
        look.step,
        (look.block.start, look.block.stop),
        (feed[0], feed[-1] + 1),
        tuple(p for p, _ in edit.write),
        sure,
        left,
        pieces,
    )


def noted(look: Look, edit: Edit, k: int) -> dict[int, TokenLogprob]:
    """Of what is written its log-probabilities, by position, with the k likeliest of the model."""
    out, at = dict[int, TokenLogprob](), {r: i for i, r in enumerate(look.rows)}
    for position, token in edit.write:
        i = at[position]
        row_V, top = look.logp_RV[i], ()
        if k:
            value_K, token_K = row_V.topk(min(k, len(row_V)))
            top = tuple(zip(map(int, token_K), map(float, value_K)))
        out[position] = TokenLogprob(
            token, float(look.shaped_RV[i][token]), float(row_V[token]), top
        )
    return out
