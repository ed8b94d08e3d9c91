"""Several gaps from one pass, one after the other: a small layer tells the states what was written (ADJUST)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from polydec.core.decoder import Streams
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.rng import Rng
from polydec.core.transcript import Text, Transcript
from polydec.core.types import Edit, Exactness, Vocab
from polydec.families.diffusion.denoising import Denoising, Spot, each, given, noted, unmasked
from polydec.families.diffusion.events import Unmasked
from polydec.families.diffusion.protocols import Board
from polydec.families.diffusion.stats import DenoiseStats
from polydec.families.diffusion.types import gaps

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

    base: Denoising
    adjust: Adjust
    count: int = 4

    @property
    def exactness(self) -> Exactness:
        return self.base.exactness if self.count == 1 else Exactness.APPROXIMATE

    @property
    def vocab(self) -> Vocab:
        return self.base.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """All choices of a request, each on a board of its own."""

        async def write(board: Board, text: Text) -> Result:
            return await _write(self, board, text, rng(text.choice or 0), into)

        return await each(self.base.denoiser, request, into, write)


async def _write(
    how: JointDenoising, board: Board, text: Text, rng: Rng, into: Transcript
) -> Result:
    """Pass after pass, several edits each, until the text ends."""
    base, model, asked, told = (
        how.base,
        how.base.denoiser,
        into.request.logprobs,
        into.told(Unmasked),
    )
    stats, before, spot = DenoiseStats(), None, how.base.start(into.request, text.ends)
    new, notes = given(text, spot)
    while text.finish_reason is None:
        feed = base.feed(spot, before)
        states = await board.read(spot.canvas, feed)
        first, opened, write = spot, not spot.step, list[tuple[int, int]]()
        shown, fresh = None, dict[int, TokenLogprob]()
        for _ in range(how.count):
            if write:
                states = how.adjust(model.embed(spot.canvas[: len(states)])[None], states[None])[0]
            rows = base.rows(spot, feed)
            look = base.look(spot, rows, model.laws(states[list(rows)], rows))
            edit, state = base.unmasker.choose(spot.state, look, rng)
            shown, write = shown or look, [*write, *edit.write]
            fresh |= {} if asked is None else noted(look, edit, asked)
            spot = base.after(spot, edit, state)
            if not _goes_on(spot, first):
                break
        edit, before = Edit(write=tuple(sorted(write))), first.canvas
        notes |= fresh
        new += text.edit(edit, notes=notes)
        stats, new = stats.seen(len(write), len(feed), new, opened), 0
        if told and shown is not None:
            into.on(unmasked(base, text, shown, feed, edit))
    board.close()
    return text.result(stats)


def _goes_on(spot: Spot, first: Spot) -> bool:
    """Whether the block still has a gap."""
    return spot.block.start == first.block.start and bool(
        gaps(spot.canvas, spot.block.start, spot.block.stop)
    )
