"""Denoising in an order that is drawn before the first pass (dKV-Cache-Greedy)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polydec.core.decoder import Streams
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder, OneEdit
from polydec.methods.diffusion.loop.types import Rank


@dataclass(frozen=True)
class DrawnOrderDenoising:
    """Denoising in an order that is drawn before the first pass of each answer.

    A rank is drawn for every position, and a decoder is made for these ranks. So the rule that
    chooses what is fed knows which gaps come next.

    Attributes:
        make: Makes the decoder from a rank for each position; () stands for an order from the left.

    Exact: what the loop is.
    Reduces to: the loop itself where `make` does not look at ranks.
    """

    make: Callable[[Rank], DenoisingDecoder]

    @property
    def exactness(self) -> Exactness:
        return self.make(()).exactness

    @property
    def unexercised(self) -> Mapping[str, str]:
        return self.make(()).unexercised

    @property
    def vocab(self) -> TokenVocabulary:
        return self.make(()).vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request, each in an order of its own.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        # The loop needs a decoder before any rank is drawn; its passes read the ranked one.
        return await self.make(()).fill_canvases(request, rng, into, self._begin)

    def _begin(self, request: Request, rng: Rng) -> OneEdit:
        length = len(request.prompt) + request.max_tokens
        # Sorting by independent uniform ranks gives a uniformly random order.
        rank = tuple(rng.child_stream("rank", i).draw_uniform() for i in range(length))
        return OneEdit(self.make(rank).open_passes(request), rng)
