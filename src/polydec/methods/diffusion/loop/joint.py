"""Several gaps from one pass, one after the other: a small layer updates the states (ADJUST)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from polydec.core.decoder import Streams
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import BoardReader, DenoisingDecoder
from polydec.methods.diffusion.loop.filling import CanvasPass, FillingState, FillingStep
from polydec.methods.diffusion.loop.types import gap_positions

Adjust = Callable[[Tensor, Tensor], Tensor]
"""(embeddings, states) -> states, [1, T, H] each: what the states become once these tokens stand.
"""


@dataclass(frozen=True)
class JointDenoising:
    """Makes several edits from each pass over the canvas.

    The unmasker makes up to `count` edits of one pass. Between two of them `adjust` reads the
    canvas as it is now and gives new states, and the model's own head turns these into laws. So a
    token that is written depends on the tokens that were written just before. A trace shows a
    pass's edits together, with the laws of the pass itself.

    Attributes:
        base: How the canvas is filled; every pass feeds all of it.
        adjust: Layer that was trained for the model.
        count: Edits of a pass, at least 1; they end with the block.

    Exact: no, but for count = 1.
    Reduces to: base for count = 1; the unmasker on laws that stay as they are where `adjust`
    changes nothing.
    Source: ADJUST, approximate joint sampling for diffusion language models (2025), with the lowest
    entropy first.
    """

    base: DenoisingDecoder
    adjust: Adjust
    count: int = 4

    @property
    def exactness(self) -> Exactness:
        if self.count == 1:
            return self.base.exactness
        return Exactness.APPROXIMATE

    @property
    def vocab(self) -> TokenVocabulary:
        return self.base.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request, several edits a pass.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        return await self.base.fill_canvases(
            request, rng, into, lambda r, own: _JointPasses(self, self.base.open_passes(r), own)
        )


@dataclass(frozen=True)
class _JointPasses:
    """Passes of several edits each."""

    how: JointDenoising
    sight: BoardReader
    rng: Rng

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        base = self.how.base
        model = self.how.base.denoiser
        first = spot
        feed = self.sight.fed_positions(spot)
        # One pass of the model gives the states of all positions, TH.
        states = await self.sight.board.read_canvas(spot.canvas, feed)
        steps = list[FillingStep]()
        while not steps or (len(steps) < self.how.count and _goes_on(spot, first)):
            if steps:
                # The small layer takes the place of a pass: it reads the new tokens' embeddings
                # beside the states as they were.
                embedded = model.embed_canvas(spot.canvas[: len(states)])
                states = self.how.adjust(embedded[None], states[None])[0]
            rows = base.asked_gaps(spot, feed)
            look = base.unmasker_view(spot, rows, model.laws_of_states(states[list(rows)], rows))
            edit, state = base.unmasker.choose_edit(spot.state, look, self.rng)
            steps.append(base.apply_edit(spot, look, feed, edit, state))
            spot = steps[-1].spot
        # All edits become one step, which keeps the laws of each for the log-probabilities.
        write = sorted(pair for step in steps for pair in step.edit.write)
        parts = tuple((step.look, step.edit) for step in steps)
        whole = FillingStep(steps[0].look, feed, TextEdit(write=tuple(write)), spot, parts)
        return CanvasPass((whole,), len(feed))

    def close(self) -> None:
        self.sight.close()


def _goes_on(spot: FillingState, first: FillingState) -> bool:
    """Whether the block still has a gap."""
    return spot.block.start == first.block.start and bool(
        gap_positions(spot.canvas, spot.block.start, spot.block.stop)
    )
