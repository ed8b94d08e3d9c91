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
    """Every answer is filled by a loop of its own, made for a rank of each position that was drawn for it: whoever chooses what
    is fed knows then which gaps come next.

    make: a rank of each position -> the loop; () stands for an order from the left.

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

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        return await self.make(()).fill(request, rng, into, self._begin)

    def _begin(self, request: Request, rng: Rng) -> OneEdit:
        length = len(request.prompt) + request.max_tokens
        rank = tuple(rng.at("rank", i).uniform() for i in range(length))
        return OneEdit(self.make(rank).open(request), rng)
