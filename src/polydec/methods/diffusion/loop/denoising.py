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
from polydec.methods.diffusion.loop.known_tokens import NoKnownTokens
from polydec.methods.diffusion.loop.protocols import (
    CanvasRefresh,
    EndingRule,
    FeedingPlan,
    KnownTokenRule,
    Unmasker,
)
from polydec.methods.diffusion.loop.types import (
    KnownTokenLaw,
    UnmaskerView,
    canvas_with_edit,
    gap_positions,
)
from polydec.methods.diffusion.loop.unplanned import UnplannedFeeding


@dataclass(frozen=True)
class DenoisingDecoder:
    """A decoder of the diffusion family: it fills the gaps (masked positions) of a canvas.

    The answer's max_tokens positions stand after the prompt as gaps, but for those that the request
    gives. They are filled block by block from the left. Tokens are final as soon as no gap stands
    before them. Gaps after an end (EOS, a stop id) that was written are no part of the answer and
    are not filled.

    Attributes:
        denoiser: Model that gives a law at each gap.
        unmasker: Which gaps are filled after a pass, and with which tokens.
        refresh: Which positions a pass feeds; the others keep keys and values of an earlier pass.
        block: Positions of a block, 0 or more. 0: the answer is one block. The last block may be
            shorter. Under a block-causal model blocks are parts of the model's own blocks (0: all
            of one).
        shapers: Rules that change the law that tokens are drawn from, applied in order.
        exact: Whether `refresh` leaves the model's laws as they are; where not, the text is
            approximate.
        ending: Finds an answer's end before it is written.
        written: At which known tokens passes are asked for laws as well (see
            `UnmaskerView.written`).
        plan: Which positions a pass feeds that was planned with an earlier one, in place of what
            `refresh` says. Default: none was.
        prompt_kept: The prompt is fed by the first pass only, and keeps its keys and values for
            good.
    """

    denoiser: Denoiser
    unmasker: Unmasker[Any]
    refresh: CanvasRefresh
    block: int = 0
    shapers: tuple[Shaper[Any], ...] = ()
    exact: bool = True
    ending: EndingRule = field(default_factory=FullLengthEnding)
    written: KnownTokenRule = field(default_factory=NoKnownTokens)
    plan: FeedingPlan = field(default_factory=UnplannedFeeding)
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

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request, each on a canvas of its own.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        return await self.fill_canvases(
            request, rng, into, lambda r, own: OneEdit(self.open_passes(r), own)
        )

    async def fill_canvases(
        self,
        request: Request,
        rng: Streams,
        into: Transcript,
        begin: Callable[[Request, Rng], CanvasPasses],
    ) -> list[Result]:
        """Run the filling loop with passes that the caller makes.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.
            begin: Makes the passes of one answer from the request and the answer's random stream.

        Returns:
            One result for each choice of the request, in order.
        """
        return await fill_canvases(self.vocab, request, rng, into, self.start_state, begin)

    def open_passes(self, request: Request) -> BoardReader:
        """Open a canvas session of the model for one answer."""
        begin = len(request.prompt)
        return BoardReader(self, self.denoiser.open_canvas(begin + request.max_tokens, begin))

    def start_state(self, request: Request, ends: frozenset[int]) -> FillingState:
        """Return the state of an answer before its first pass.

        Args:
            request: What is asked; `given` holds known tokens of the answer, None for a gap.
            ends: Token ids that end the answer.
        """
        answer = request.given or (None,) * request.max_tokens
        canvas: Canvas = (*request.prompt, *answer)
        return self._at(
            canvas, self.unmasker.start_state(canvas), None, 0, len(request.prompt), ends
        )

    def state_after(
        self, spot: FillingState, edit: TextEdit, state: Any, last: int | None = None
    ) -> FillingState:
        """Return the state after a pass that wrote an edit.

        Args:
            spot: State before the pass.
            edit: Tokens that the pass writes.
            state: State of the unmasker after the pass.
            last: Position of the answer's last token. None: it is not known.

        Returns:
            The next state; its canvas is cut after `last` (and the ending rule's spare gaps) where
            that is known.
        """
        # Once the end is known, the canvas is cut behind it: later passes need not run those
        # positions.
        canvas = canvas_with_edit(spot.canvas, edit)[
            : None if last is None else last + 1 + self.ending.spare
        ]
        return self._at(canvas, state, spot, spot.passes + 1, spot.begin, spot.ends)

    def state_after_remasking(
        self, spot: FillingState, after: FillingState, state: Any, positions: Collection[int]
    ) -> FillingState:
        """Return the state after a pass that takes tokens back.

        Some positions become gaps once more, and nothing of the block is final then.

        Args:
            spot: State before the pass.
            after: State that the pass's edit led to.
            state: State of the unmasker after the pass.
            positions: Positions of the block that become gaps.
        """
        canvas = tuple(None if i in positions else x for i, x in enumerate(after.canvas))
        block = self._block(canvas, spot.begin, spot.ends)
        # The step grows by one although tokens went back, so that rules which count the block's
        # passes go on. Tokens of this block may still change: only what stands before it is final.
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
        # The unmasker learns of a new block once, with the number of gaps that it has to fill.
        if block and (before is None or block.start != before.block.start):
            state = self.unmasker.enter_block(
                state, len(gap_positions(canvas, block.start, block.stop))
            )
        elif before is not None:
            step = before.step + 1
        return FillingState(canvas, state, block, step, passes, begin, ends)

    def _block(self, canvas: Canvas, begin: int, ends: frozenset[int]) -> range:
        """Return the first block that has a gap, up to the first end in it.

        It is empty where no gap is left to be filled.
        """
        # What follows an end is no part of the answer, so no block reaches beyond it.
        end = next((i for i in range(begin, len(canvas)) if canvas[i] in ends), len(canvas))
        first = next((i for i in range(begin, end) if canvas[i] is None), None)
        if first is None:
            return range(end, end)
        # The outer bounds: the model's own block around the first gap, or all of the answer.
        own = self.denoiser.block
        low = first // own * own if own else begin
        if own:
            high = min(low + own, len(canvas))
        else:
            high = len(canvas)
        # Inside of these bounds blocks of `size` positions are counted from `low`.
        size = self.block or high - low
        start = low + (first - low) // size * size
        return range(max(start, begin), min(start + size, high, end))

    def fed_positions(
        self, spot: FillingState, before: Canvas | None, ahead: int = 0
    ) -> Sequence[int]:
        """Return the positions that the next pass feeds, ascending.

        Under a block-causal model nothing after the model's own block is fed, and a kept prompt is
        fed once only.

        Args:
            spot: State before the pass.
            before: Canvas of the pass before; None in the first pass of an answer.
            ahead: Number of positions after the block that are fed in any case. Default 0.
        """
        planned = self.plan.planned_positions(spot.state)
        if planned is None:
            feed = self.refresh.fed_positions(spot.canvas, before, spot.block, spot.step)
        else:
            feed = planned
        # A block-causal model sees whole blocks: round up to the end of the last one in reach.
        own = self.denoiser.block
        reach = spot.block.stop + ahead
        if own:
            stop = min(len(spot.canvas), -(-reach // own) * own)
        else:
            stop = len(spot.canvas)
        if ahead and feed[-1] + 1 < stop:
            feed = [*feed, *range(feed[-1] + 1, stop)]
        # The first pass has to feed the prompt: there are no keys and values to keep before it.
        if self.prompt_kept and before is not None:
            start = spot.begin
        else:
            start = 0
        if start <= feed[0] and feed[-1] < stop:
            return feed
        return [p for p in feed if start <= p < stop]

    def asked_gaps(
        self, spot: FillingState, feed: Sequence[int], ahead: int = 0
    ) -> tuple[int, ...]:
        """Return the gaps whose laws the next pass is asked for, ascending.

        Args:
            spot: State before the pass.
            feed: Positions that the pass feeds; a gap outside of them has no law.
            ahead: Number of positions after the block that are asked for, too. Default 0.
        """
        everywhere = self.unmasker.everywhere or self.ending.everywhere
        if everywhere:
            stop = feed[-1] + 1
        else:
            stop = spot.block.stop + ahead
        rows = gap_positions(spot.canvas, spot.block.start, stop)
        # Membership in a range costs nothing; any other sequence is hashed once.
        if isinstance(feed, range):
            fed = feed
        else:
            fed = frozenset(feed)
        return tuple(r for r in rows if r in fed)

    def standing_rows(self, spot: FillingState, feed: Sequence[int]) -> tuple[int, ...]:
        """Return the known tokens' positions whose laws the next pass is asked for.

        Args:
            spot: State before the pass.
            feed: Positions that the pass feeds.

        Returns:
            Positions, ascending; those of `written`, without gaps.
        """
        asked = self.written.known_positions(spot.state, spot.block)
        if not asked:
            return ()
        fed = frozenset(feed)
        return tuple(i for i in asked if i in fed and spot.canvas[i] is not None)

    def apply_edit(
        self,
        spot: FillingState,
        look: UnmaskerView,
        feed: Sequence[int],
        edit: TextEdit,
        state: Any,
    ) -> FillingStep:
        """Make a step of an edit that was chosen under these laws, with the end that they predict.

        Args:
            spot: State before the pass.
            look: Laws that the edit was chosen under.
            feed: Positions that ran for them.
            edit: Tokens to write, before the ending rule cuts them.
            state: State of the unmasker after the pass.
        """
        last = self.ending.find_end(look, edit)
        # An end that is predicted may lie where none is allowed: then the answer goes on.
        if last is not None and not self._may_end(spot, look, edit, last):
            last = None
        edit = _ended(look, edit, last)
        return FillingStep(look, feed, edit, self.state_after(spot, edit, state, last))

    def _may_end(self, spot: FillingState, look: UnmaskerView, edit: TextEdit, last: int) -> bool:
        """Whether an answer that is allowed ends at a position, once an edit is written."""
        allowed = self.denoiser.allowed_canvases
        if allowed is None:
            return True
        canvas = canvas_with_edit(spot.canvas, _ended(look, edit, last))[: last + 1]
        return allowed.can_finish(canvas, spot.begin)

    def unmasker_view(
        self, spot: FillingState, rows: tuple[int, ...], logw_RV: Tensor
    ) -> UnmaskerView:
        """Bundle the laws of a pass with what an unmasker needs to read them.

        Args:
            spot: State before the pass.
            rows: Gaps whose laws these are, ascending.
            logw_RV: Log-weights of the model at these gaps, shape ``[R, V]``.
        """
        return UnmaskerView(
            spot.canvas,
            spot.block,
            rows,
            logw_RV,
            self.shapers,
            spot.passes,
            spot.ends,
            allowed=self.denoiser.allowed_canvases,
            begin=spot.begin,
        )


@dataclass(eq=False)
class BoardReader:
    """A canvas session under `how`, with the canvas that it was given last.

    Attributes:
        how: Decoder that decides what is fed and asked for.
        board: Session of the model that holds the keys and values of earlier passes.
        before: Canvas of the last pass; None before the first.
    """

    how: DenoisingDecoder
    board: CanvasSession
    before: Canvas | None = None

    def fed_positions(self, spot: FillingState, ahead: int = 0) -> Sequence[int]:
        """Return the positions that the next pass feeds, and remember its canvas as the last one.

        Args:
            spot: State before the pass.
            ahead: Number of positions after the block that are fed in any case. Default 0.
        """
        feed = self.how.fed_positions(spot, self.before, ahead)
        self.before = spot.canvas
        return feed

    async def look_at_board(
        self, spot: FillingState, ahead: int = 0
    ) -> tuple[UnmaskerView, Sequence[int]]:
        """Run a pass of the model over a canvas.

        Args:
            spot: State before the pass.
            ahead: Number of positions after the block whose laws are asked for, too. Default 0.

        Returns:
            The laws at the gaps, and the positions that were fed for them.
        """
        feed = self.fed_positions(spot, ahead)
        rows = self.how.asked_gaps(spot, feed, ahead)
        # Laws at gaps and at known tokens come from one pass: their rows are asked for together, in
        # ascending order, and taken apart afterwards.
        stand = self.how.standing_rows(spot, feed)
        if stand:
            asked = sorted((*rows, *stand))
        else:
            asked = rows
        logw_RV = await self.board.score_canvas(spot.canvas, asked, feed)
        if not stand:
            return self.how.unmasker_view(spot, rows, logw_RV), feed
        at = {r: i for i, r in enumerate(asked)}
        look = self.how.unmasker_view(spot, rows, logw_RV[[at[r] for r in rows]])
        # At a known token only the two best are of interest.
        logp_SV = normalise_log_weights(logw_RV[[at[r] for r in stand]])
        best_S2 = logp_SV.topk(2, dim=-1).values
        written = {
            r: KnownTokenLaw(float(best.exp()), float(best - second))
            for r, (best, second) in zip(stand, best_S2, strict=True)
        }
        return replace(look, written=written), feed

    def fork(self) -> BoardReader:
        """A twin that goes on from the same passes."""
        return BoardReader(self.how, self.board.fork(), self.before)

    def close(self) -> None:
        self.board.close()


@dataclass(frozen=True)
class OneEdit:
    """Passes of which each gives one edit: the unmasker's.

    Attributes:
        sight: Session over the canvas.
        rng: Random stream of the answer.
    """

    sight: BoardReader
    rng: Rng

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        how = self.sight.how
        look, feed = await self.sight.look_at_board(spot)
        edit, state = how.unmasker.choose_edit(spot.state, look, self.rng)
        return CanvasPass((how.apply_edit(spot, look, feed, edit, state),), len(feed))

    def close(self) -> None:
        self.sight.close()


def _ended(look: UnmaskerView, edit: TextEdit, last: int | None) -> TextEdit:
    """Return the edit with nothing after position `last`, and an end there if there is none yet."""
    if last is None:
        return edit
    write = {p: x for p, x in edit.write if p <= last}
    # The answer has to end with a real end: of the possible ends the likeliest one is written.
    if look.canvas[last] is None and write.get(last) not in look.ends:
        row_V = look.shaped_RV[look.rows.index(last)]
        write[last] = max(look.ends, key=lambda x: float(row_V[x]))
    return TextEdit(write=tuple(sorted(write.items())))
