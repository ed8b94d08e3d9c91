"""Denoising: a canvas of gaps, filled in any order, some in each pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.decoder import Streams
from polydec.core.law import normalise_log_weights
from polydec.core.protocols import Shaper
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.endings import FullLengthEnding
from polydec.methods.diffusion.loop.filling import (
    CanvasPass,
    CanvasPasses,
    FillingState,
    FillingStep,
    fill_canvases,
)
from polydec.methods.diffusion.loop.protocols import CanvasRefresh, EndingRule, Unmasker
from polydec.methods.diffusion.loop.types import UnmaskerView, canvas_with_edit, gap_positions


@dataclass(frozen=True)
class DenoisingDecoder:
    """A decoder of the diffusion family.

    The answer's max_tokens positions stand behind the prompt as gaps, but for those that the request gives. They are filled
    block by block from the left; block: positions of one (0: the answer is one block; the last one may be shorter). Under a
    block-causal model these are parts of the model's own blocks (0: all of one). Tokens are final as soon as no gap stands
    before them. Gaps behind an end (EOS, a stop id) that was written are no part of the answer and are not filled.

    exact: whether `refresh` leaves the model's laws as they are; where not, the text is approximate. ending: finds an answer's
    end before it is written. written: passes are asked for the laws of the block's tokens as well (`UnmaskerView.written`).
    prompt_kept: the prompt is fed by the first pass alone, and keeps its keys and values for good.
    """

    denoiser: Denoiser
    unmasker: Unmasker[Any]
    refresh: CanvasRefresh
    block: int = 0
    shapers: tuple[Shaper[Any], ...] = ()
    exact: bool = True
    ending: EndingRule = field(default_factory=FullLengthEnding)
    written: bool = False
    prompt_kept: bool = False

    @property
    def exactness(self) -> Exactness:
        if self.exact:
            return self.unmasker.exactness
        return Exactness.APPROXIMATE

    @property
    def unexercised(self) -> Mapping[str, str]:
        """What a contract never sees of its passes: what it never sees of the unmasker's."""
        return getattr(self.unmasker, "unexercised", {})

    @property
    def vocab(self) -> TokenVocabulary:
        return self.denoiser.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        return await self.fill(request, rng, into, lambda r, own: OneEdit(self.open(r), own))

    async def fill(
        self,
        request: Request,
        rng: Streams,
        into: Transcript,
        begin: Callable[[Request, Rng], CanvasPasses],
    ) -> list[Result]:
        """The loop from this canvas on, with passes that somebody else begins."""
        return await fill_canvases(self.vocab, request, rng, into, self.start, begin)

    def open(self, request: Request) -> BoardReader:
        """A board for an answer."""
        begin = len(request.prompt)
        return BoardReader(self, self.denoiser.open(begin + request.max_tokens, begin))

    def start(self, request: Request, ends: frozenset[int]) -> FillingState:
        """Before the first pass."""
        answer = request.given or (None,) * request.max_tokens
        canvas: Canvas = (*request.prompt, *answer)
        return self._at(canvas, self.unmasker.start(canvas), None, 0, len(request.prompt), ends)

    def after(
        self, spot: FillingState, edit: TextEdit, state: Any, last: int | None = None
    ) -> FillingState:
        """After a pass whose edit this is; last: where the answer ends, None where that is not known."""
        canvas = canvas_with_edit(spot.canvas, edit)[
            : None if last is None else last + 1 + self.ending.spare
        ]
        return self._at(canvas, state, spot, spot.passes + 1, spot.begin, spot.ends)

    def again(
        self, spot: FillingState, after: FillingState, state: Any, positions: Collection[int]
    ) -> FillingState:
        """As `after`, which a pass from `spot` led to, but these positions of its block are gaps once more. state: what the
        unmasker came to. Nothing of the block is final."""
        canvas = tuple(None if i in positions else x for i, x in enumerate(after.canvas))
        block = self._block(canvas, spot.begin, spot.ends)
        final = spot.block.start
        return replace(
            after, canvas=canvas, state=state, block=block, step=spot.step + 1, final=final
        )

    def _at(
        self,
        canvas: Canvas,
        state: Any,
        before: FillingState | None,
        passes: int,
        begin: int,
        ends: frozenset[int],
    ) -> FillingState:
        block = self._block(canvas, begin, ends)
        step = 0
        if block and (before is None or block.start != before.block.start):
            state = self.unmasker.enter(state, len(gap_positions(canvas, block.start, block.stop)))
        elif before is not None:
            step = before.step + 1
        return FillingState(canvas, state, block, step, passes, begin, ends)

    def _block(self, canvas: Canvas, begin: int, ends: frozenset[int]) -> range:
        """The first block that has a gap, up to the first end that stands in it; empty where no gap is left to be filled."""
        end = next((i for i in range(begin, len(canvas)) if canvas[i] in ends), len(canvas))
        first = next((i for i in range(begin, end) if canvas[i] is None), None)
        if first is None:
            return range(end, end)
        own = self.denoiser.block
        low = first // own * own if own else begin
        if own:
            high = min(low + own, len(canvas))
        else:
            high = len(canvas)
        size = self.block or high - low
        start = low + (first - low) // size * size
        return range(max(start, begin), min(start + size, high, end))

    def feed(self, spot: FillingState, before: Canvas | None, ahead: int = 0) -> Sequence[int]:
        """What the next pass feeds: under a block-causal model nothing behind its own block, and no prompt that is kept.
        ahead: so many positions behind the block are fed in any case."""
        feed = self.refresh.feed(spot.canvas, before, spot.block, spot.step)
        own = self.denoiser.block
        reach = spot.block.stop + ahead
        if own:
            stop = min(len(spot.canvas), -(-reach // own) * own)
        else:
            stop = len(spot.canvas)
        if ahead and feed[-1] + 1 < stop:
            feed = [*feed, *range(feed[-1] + 1, stop)]
        if self.prompt_kept and before is not None:
            start = spot.begin
        else:
            start = 0
        if start <= feed[0] and feed[-1] < stop:
            return feed
        return [p for p in feed if start <= p < stop]

    def rows(self, spot: FillingState, feed: Sequence[int], ahead: int = 0) -> tuple[int, ...]:
        """The gaps whose laws the next pass is asked for; ahead: so many positions behind the block, too."""
        everywhere = self.unmasker.everywhere or self.ending.everywhere
        if everywhere:
            stop = feed[-1] + 1
        else:
            stop = spot.block.stop + ahead
        rows = gap_positions(spot.canvas, spot.block.start, stop)
        if isinstance(feed, range):
            fed = feed
        else:
            fed = frozenset(feed)
        return tuple(r for r in rows if r in fed)

    def standing(self, spot: FillingState, feed: Sequence[int]) -> tuple[int, ...]:
        """The tokens of the block whose laws the next pass is asked for."""
        if not self.written:
            return ()
        fed = frozenset(feed)
        return tuple(i for i in spot.block if spot.canvas[i] is not None and i in fed)

    def step(
        self,
        spot: FillingState,
        look: UnmaskerView,
        feed: Sequence[int],
        edit: TextEdit,
        state: Any,
    ) -> FillingStep:
        """An edit that was chosen under these laws, with the end that they foretell."""
        last = self.ending.find(look, edit)
        edit = _ended(look, edit, last)
        return FillingStep(look, feed, edit, self.after(spot, edit, state, last))

    def look(self, spot: FillingState, rows: tuple[int, ...], logw_RV: Tensor) -> UnmaskerView:
        return UnmaskerView(
            spot.canvas, spot.block, rows, logw_RV, self.shapers, spot.passes, spot.ends
        )


@dataclass(eq=False)
class BoardReader:
    """A board under `how`, and the canvas that it was given last."""

    how: DenoisingDecoder
    board: CanvasSession
    before: Canvas | None = None

    def feed(self, spot: FillingState, ahead: int = 0) -> Sequence[int]:
        """What the next pass feeds; from then on this canvas is the last."""
        feed = self.how.feed(spot, self.before, ahead)
        self.before = spot.canvas
        return feed

    async def look(self, spot: FillingState, ahead: int = 0) -> tuple[UnmaskerView, Sequence[int]]:
        """The laws of a canvas, and what was fed for them; ahead: those of so many positions behind the block, too."""
        feed = self.feed(spot, ahead)
        rows = self.how.rows(spot, feed, ahead)
        stand = self.how.standing(spot, feed)
        if stand:
            asked = sorted((*rows, *stand))
        else:
            asked = rows
        logw_RV = await self.board.score(spot.canvas, asked, feed)
        if not stand:
            return self.how.look(spot, rows, logw_RV), feed
        at = {r: i for i, r in enumerate(asked)}
        look = self.how.look(spot, rows, logw_RV[[at[r] for r in rows]])
        sure_S = normalise_log_weights(logw_RV[[at[r] for r in stand]]).max(-1).values.exp()
        written = {r: float(sure) for r, sure in zip(stand, sure_S, strict=True)}
        return replace(look, written=written), feed

    def fork(self) -> BoardReader:
        """A twin that goes on from the same passes."""
        return BoardReader(self.how, self.board.fork(), self.before)

    def close(self) -> None:
        self.board.close()


@dataclass(frozen=True)
class OneEdit:
    """Passes of which each gives one edit: the unmasker's."""

    sight: BoardReader
    rng: Rng

    async def next(self, spot: FillingState) -> CanvasPass:
        how = self.sight.how
        look, feed = await self.sight.look(spot)
        edit, state = how.unmasker.choose(spot.state, look, self.rng)
        return CanvasPass((how.step(spot, look, feed, edit, state),), len(feed))

    def close(self) -> None:
        self.sight.close()


def _ended(look: UnmaskerView, edit: TextEdit, last: int | None) -> TextEdit:
    """The edit, with the likeliest end at position `last` where there is none yet, and nothing behind it."""
    if last is None:
        return edit
    write = {p: x for p, x in edit.write if p <= last}
    if look.canvas[last] is None and write.get(last) not in look.ends:
        row_V = look.shaped_RV[look.rows.index(last)]
        write[last] = max(look.ends, key=lambda x: float(row_V[x]))
    return TextEdit(write=tuple(sorted(write.items())))
