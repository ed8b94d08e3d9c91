"""Several gaps from one pass, one after the other: a small layer tells the states what was written (ADJUST)."""

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
"""(embeddings, states) -> states, [1, T, H] each: what the states become once these tokens stand."""


@dataclass(frozen=True)
class JointDenoising:
    """Of each pass over the canvas the unmasker makes up to `count` edits. Between two of them `adjust` reads the canvas as it
    is now and gives new states, which the model's own head makes laws of: so what is written sees what was written just before.

    base: how the canvas is filled, all of it fed in every pass; adjust: trained for the model; count: edits of a pass, at least
    1; they end with the block. A trace shows a pass's edits together, beside the laws of the pass itself.

    Exact: no, but for count = 1.
    Reduces to: base for count = 1; the unmasker on laws that stay as they are where `adjust` changes nothing.
    Source: ADJUST, approximate joint sampling for diffusion language models (2025), with the lowest entropy first.
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

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        return await self.base.fill(
            request, rng, into, lambda r, own: _JointPasses(self, self.base.open(r), own)
        )


@dataclass(frozen=True)
class _JointPasses:
    """Passes of several edits each."""

    how: JointDenoising
    sight: BoardReader
    rng: Rng

    async def next(self, spot: FillingState) -> CanvasPass:
        base = self.how.base
        model = self.how.base.denoiser
        first = spot
        feed = self.sight.feed(spot)
        states = await self.sight.board.read(spot.canvas, feed)
        steps = list[FillingStep]()
        while not steps or (len(steps) < self.how.count and _goes_on(spot, first)):
            if steps:
                embedded = model.embed(spot.canvas[: len(states)])
                states = self.how.adjust(embedded[None], states[None])[0]
            rows = base.rows(spot, feed)
            look = base.look(spot, rows, model.laws(states[list(rows)], rows))
            edit, state = base.unmasker.choose(spot.state, look, self.rng)
            steps.append(base.step(spot, look, feed, edit, state))
            spot = steps[-1].spot
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
