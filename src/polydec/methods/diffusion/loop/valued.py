"""Several edits drawn for each pass, and one taken whose text will be worth much (soft value-based decoding)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.core.decoder import Streams
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import BoardReader, DenoisingDecoder
from polydec.methods.diffusion.loop.filling import CanvasPass, FillingState
from polydec.methods.diffusion.loop.worths import CanvasValue, CanvasValueReader


@dataclass(frozen=True)
class SoftValueDenoising:
    """Of each pass's laws the unmasker of `base` draws `tries` edits, independently. A `value` foretells what the answer will
    be worth that each of them leads to. One of the edits is taken, with probability in proportion to exp(worth / heat), and the
    others are forgotten.

    tries: at least 1; heat: at least 0, in units of the worth; at 0 the first of the best is taken. Where all edits are the
    same, nothing is tried. Looks of the model for a value count as positions that were fed, not as passes.

    Exact: no, but for tries = 1: the law is bent towards what is worth much, less than a true soft value would bend it.
    Reduces to: base, token for token, for tries = 1; base, in law, for values that are all the same or as heat grows.
    Source: Li et al., derivative-free guidance with soft value-based decoding (SVDD, 2024); there how many gaps an edit fills
    is left to chance, and the released code takes the best.
    """

    base: DenoisingDecoder
    value: CanvasValue
    tries: int = 8
    heat: float = 0.0

    @property
    def exactness(self) -> Exactness:
        if self.tries == 1:
            return self.base.exactness
        return Exactness.APPROXIMATE

    @property
    def unexercised(self) -> Mapping[str, str]:
        return self.base.unexercised

    @property
    def vocab(self) -> TokenVocabulary:
        return self.base.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        return await self.base.fill(request, rng, into, self._begin)

    def _begin(self, request: Request, rng: Rng) -> _SoftValuePasses:
        reader = self.value.open(self.base, request.prompt)
        return _SoftValuePasses(self, self.base.open(request), rng, reader)

    def taken(self, worth_M: Tensor, rng: Rng) -> int:
        """Which of the edits is taken."""
        if not self.heat:
            return int(worth_M.argmax())
        return rng.categorical((worth_M / self.heat).softmax(-1))


@dataclass(frozen=True)
class _SoftValuePasses:
    """Draw, try, take."""

    how: SoftValueDenoising
    sight: BoardReader
    rng: Rng
    reader: CanvasValueReader

    async def next(self, spot: FillingState) -> CanvasPass:
        base = self.how.base
        rng = self.rng
        look, feed = await self.sight.look(spot)
        drawn = [
            base.unmasker.choose(spot.state, look, rng.at("candidate", m) if m else rng)
            for m in range(self.how.tries)
        ]
        steps = {edit: base.step(spot, look, feed, edit, state) for edit, state in drawn}
        edit = drawn[0][0]
        fed = len(feed)
        if len(steps) > 1:
            spots = tuple(step.spot for step in steps.values())
            worths, more = await self.reader.values(spots)
            worth = dict(zip(steps, worths, strict=True))
            fed = fed + more
            worth_M = torch.tensor([worth[e] for e, _ in drawn], dtype=torch.float64)
            edit = drawn[self.how.taken(worth_M, rng.at("taken", spot.passes))][0]
        return CanvasPass((steps[edit],), fed)

    def close(self) -> None:
        self.sight.close()
        self.reader.close()
