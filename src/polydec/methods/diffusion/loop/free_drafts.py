"""Guess the edits of several passes from one pass, and check all of them in the next (FreeDave)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import BoardReader, DenoisingDecoder
from polydec.methods.diffusion.loop.filling import CanvasPass, FillingState, FillingStep
from polydec.methods.diffusion.loop.types import UnmaskerView, gap_positions


@dataclass(frozen=True)
class FreeDraftDenoising:
    """Writes what `base` writes, with fewer passes.

    From one pass's laws the unmasker's next edits are guessed: its edit now, and what it would do
    after that if the laws of the remaining gaps stayed as they are. One pass over all these
    canvases in parallel gives the laws that each of them really has; their sessions share the keys
    and values of the passes so far. Guesses are accepted for as long as the unmasker, given the
    true laws of the canvas before, arrives at a canvas that was guessed.

    Attributes:
        base: Decoder whose text is written. It may keep keys and values within a block, as long as
            what is kept depends on the block's first pass alone (full, blockwise, prefix, dual).
            With `eager` it keeps none that change a law, and its unmasker looks at its block alone.
        drafts: Canvases of a pass, at least 1, the present one included; they end with the block.
        eager: Whether guesses go on into the blocks that follow. Their gaps are asked for as well;
            the earlier block always comes first.
        subset: Whether a guess is accepted as soon as the unmasker, given the true laws of the
            canvas before, writes all of its tokens, be it with others beside them (FreeDave++). The
            others are left to the laws of the accepted guess.

    Exact: law, in the sense that the text is that of `base` for the same seed, at any temperature:
    draws have names. Approximate with `subset`: a token may be written under the laws of a later
    canvas than `base` would have.
    Reduces to: base, pass for pass, for drafts = 1 without `eager`. `subset` changes nothing where
    the unmasker writes one token a pass.
    Source: Wu and Zhang, FreeDave and FreeDave++ (2025); there one token a pass (FreeDave), and no
    chance. Its eager mode adds 1 a block to the confidence, which puts blocks in the same order.
    """

    base: DenoisingDecoder
    drafts: int = 4
    eager: bool = False
    subset: bool = False

    def __post_init__(self) -> None:
        if self.eager and (self.base.unmasker.everywhere or self.base.ending.everywhere):
            raise RequestError("eager is set: it is for rules that look at their block alone")
        if self.eager and not self.base.exact:
            raise RequestError(
                "eager is set beside a cache: a block's first pass feeds all then, and no guess may go over it; "
                "cache=0 goes with eager"
            )

    @property
    def exactness(self) -> Exactness:
        if self.subset:
            return Exactness.APPROXIMATE
        return self.base.exactness

    @property
    def vocab(self) -> TokenVocabulary:
        return self.base.vocab

    @property
    def ahead(self) -> int:
        """Positions after the block that guesses may reach."""
        # Guesses of one token each reach at most `drafts` positions: round that up to whole blocks.
        size = self.base.block or self.base.denoiser.block
        if self.eager and size:
            return -(-self.drafts // size) * size
        return 0

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write the text of `base` with fewer passes.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        return await self.base.fill_canvases(
            request,
            rng,
            into,
            lambda r, own: _FreeDraftPasses(self, [self.base.open_passes(r)], own.shared_stream()),
        )

    def guess_states(self, spot: FillingState, look: UnmaskerView, rng: Rng) -> list[FillingState]:
        """Guess the states that follow, as if the laws stayed as they are.

        Args:
            spot: State before the next pass.
            look: Laws of the last canvas that was accepted.
            rng: Random stream of the answer, shared with the check: a named draw is the same in
                both.

        Returns:
            At most ``drafts - 1`` states with gaps, in order.
        """
        out = list[FillingState]()
        known = frozenset(look.rows)
        while (
            len(out) + 1 < self.drafts
            and spot.block
            and (self.eager or spot.block.start in look.block)
            and known.issuperset(gap_positions(spot.canvas, spot.block.start, spot.block.stop))
        ):
            # The stale laws of the gaps that are still open stand in for the true ones. `step`
            # names the draws, so a guess draws what the check will draw if the laws agree.
            keep = [i for i, r in enumerate(look.rows) if spot.canvas[r] is None]
            stale = replace(
                look.only_rows(keep), canvas=spot.canvas, block=spot.block, step=spot.passes
            )
            edit, state = self.base.unmasker.choose_edit(spot.state, stale, rng)
            spot = self.base.state_after(spot, edit, state)
            if spot.block:
                out.append(spot)
        return out

    def accepts_guess(self, guess: FillingState, after: FillingState) -> bool:
        """Return whether a step of the base bears a guess out.

        Args:
            guess: Guess behind the canvas that the step was made on.
            after: State that the step leads to.
        """
        if guess.canvas == after.canvas:
            return True
        return self.subset and _is_part_of(guess.canvas, after.canvas)

    def base_step(
        self, spot: FillingState, look: UnmaskerView, rng: Rng
    ) -> tuple[TextEdit, FillingState, UnmaskerView]:
        """Do what `base` does in a state under these laws.

        Args:
            spot: State before the edit.
            look: True laws of the state's canvas.
            rng: Random stream of the answer.

        Returns:
            The edit, the state that it leads to, and the laws as the unmasker saw them.
        """
        look = look.inside_block() if self.eager else look
        if look.step != spot.passes:
            look = replace(look, step=spot.passes)
        edit, state = self.base.unmasker.choose_edit(spot.state, look, rng)
        step = self.base.apply_edit(spot, look, (), edit, state)
        return step.edit, step.spot, look


@dataclass(eq=False)
class _FreeDraftPasses:
    """Guess, verify, accept: the passes of one answer.

    Attributes:
        sights: The session that knows the text so far, and while a pass runs one for each guess.
        last: Laws of the last canvas that was accepted.
    """

    how: FreeDraftDenoising
    sights: list[BoardReader]
    rng: Rng
    last: UnmaskerView | None = None

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        how = self.how
        if self.last is None:
            guesses = []
        else:
            guesses = how.guess_states(spot, self.last, self.rng)
        spots = [spot, *guesses]
        # Draft: one session for each guess, a fork of the one that knows the accepted text.
        self.sights += [self.sights[0].fork() for _ in guesses]
        # Verify: the true laws of all canvases, scored in one batch.
        seen = await gather_coroutines(
            *(
                sight.look_at_board(s, how.ahead)
                for sight, s in zip(self.sights, spots, strict=True)
            )
        )
        # Accept: follow the unmasker under true laws, from canvas to canvas, while its result bears
        # out a later guess. The first canvas needs no check, so at least one step is made.
        steps = list[FillingStep]()
        at = 0
        while True:
            laws, feed = seen[at]
            edit, after, look = how.base_step(spot, laws, self.rng)
            later = [j for j in range(at + 1, len(spots)) if how.accepts_guess(spots[j], after)]
            if later and spots[later[-1]].canvas != after.canvas:
                # The guess holds a part of what the step writes: the rest stays open.
                guess = spots[later[-1]]
                edit = TextEdit(
                    write=tuple((i, x) for i, x in edit.write if guess.canvas[i] is not None)
                )
                after = replace(guess, passes=after.passes)
            spot = after
            steps.append(FillingStep(look, feed, edit, spot))
            if not later:
                break
            at = later[-1]
        # The session of the last accepted canvas goes on; all others are closed.
        self.last, kept = seen[at][0], self.sights.pop(at)
        self.close()
        self.sights = [kept]
        return CanvasPass(tuple(steps), sum(len(feed) for _, feed in seen))

    def close(self) -> None:
        for sight in self.sights:
            sight.close()


def _is_part_of(part: Canvas, canvas: Canvas) -> bool:
    """Return whether a canvas holds every token of another one of its length."""
    return len(part) == len(canvas) and all(
        x is None or x == y for x, y in zip(part, canvas, strict=True)
    )
