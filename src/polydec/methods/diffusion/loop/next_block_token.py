"""A block's first token is written by the pass that finishes the block before it (Fast-dLLM v2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polydec.core.decoder import Streams
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import BoardReader, DenoisingDecoder
from polydec.methods.diffusion.loop.filling import CanvasPass, FillingState


@dataclass(frozen=True)
class FirstTokenDenoising:
    """`base` over a block-causal model, with a pass for the first token of each block.

    Where a block of the model begins with a gap, its first pass fills that gap alone, as an
    autoregressive model writes its next token. That pass feeds the finished block before it as
    well. So every other gap of a block sees a token of its block.

    Attributes:
        base: Decoder over a block-causal model.

    Exact: as base: one gap a pass stays a draw from the model's law in some order.
    Reduces to: base where every block begins with a given token.
    Source: Wu et al., Fast-dLLM v2 (2025); there the token is always the likeliest one, and the
    block's gaps are not fed for it: its head is shifted, and the last token before the block says
    the same without them.
    """

    base: DenoisingDecoder

    @property
    def exactness(self) -> Exactness:
        return self.base.exactness

    @property
    def vocab(self) -> TokenVocabulary:
        return self.base.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request.

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
            lambda r, own: _FirstTokenPasses(self.base, self.base.open_passes(r), own),
        )


@dataclass(eq=False)
class _FirstTokenPasses:
    """Passes of `base`, and the first pass of each block.

    Attributes:
        last: First position of the block that such a pass began last.
    """

    base: DenoisingDecoder
    sight: BoardReader
    rng: Rng
    last: int = -1

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        base = self.base
        first = spot.block.start
        # A block that begins with a given token needs no pass of its own.
        begins = first % base.denoiser.block == 0 and spot.canvas[first] is None
        # For the refresh rule the block's passes are counted from the one after its first token:
        # that one is its first pass, which may feed more.
        seen = replace(spot, step=spot.step - (first == self.last))
        look, feed = await self.sight.look_at_board(seen)
        if begins:
            self.last = first
            edit = look.fill_edit([0], [look.draw_token(0, self.rng)])
            state = spot.state
        else:
            edit, state = base.unmasker.choose_edit(spot.state, look, self.rng)
        return CanvasPass((base.apply_edit(spot, look, feed, edit, state),), len(feed))

    def close(self) -> None:
        self.sight.close()
