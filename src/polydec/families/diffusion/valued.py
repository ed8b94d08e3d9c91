"""Several edits drawn for each pass, and the one taken whose text a judge likes (soft value-based decoding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.core.decoder import Streams
from polydec.core.effects import gather
from polydec.core.protocols import Session, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Draft, Edit, Exactness, Reads, Vocab, Want
from polydec.families.diffusion.denoising import Denoising, Sight
from polydec.families.diffusion.filling import Passed, Spot
from polydec.families.diffusion.types import Canvas, filled, gaps

LEAST = -1e4
"""The value of an answer with a token that the judge rules out, and of no answer a lower one."""


@dataclass(frozen=True)
class Valued:
    """Of each pass's laws the unmasker of `base` draws `tries` edits, independently. Each is tried on a canvas of its own,
    whose gaps take their likeliest tokens after one look of the model; the answer that this gives is worth its mean
    log-probability a token (nats, its end included) under an autoregressive `judge`. One of the edits is taken, with
    probability in proportion to exp(worth / heat), and the others are forgotten.

    tries: at least 1; heat: at least 0, in nats; at 0 the first of the best is taken. Where all edits are the same, nothing is
    tried. The looks count as positions that were fed, not as passes.

    Exact: no, but for tries = 1: the law is bent towards what the judge likes, less than a true soft value would bend it.
    Reduces to: base, token for token, for tries = 1; base, in law, for a judge of even laws or as heat grows.
    Source: Li et al., derivative-free guidance with soft value-based decoding (SVDD-PM, 2024); there values are any reward,
    how many gaps an edit fills is left to chance, and the released code takes the best.
    """

    base: Denoising
    judge: Target
    tries: int = 8
    heat: float = 0.0

    @property
    def exactness(self) -> Exactness:
        return self.base.exactness if self.tries == 1 else Exactness.APPROXIMATE

    @property
    def vocab(self) -> Vocab:
        return self.base.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        return await self.base.fill(request, rng, into, self._begin)

    def _begin(self, request: Request, rng: Rng) -> _Tried:
        sight = self.base.open(request)
        return _Tried(self, sight, rng, self.judge.open(request.prompt))

    async def worths(self, spots: Sequence[Spot], session: Session) -> tuple[list[float], int]:
        """What the answers are worth that these spots lead to, and how many positions were fed for it."""
        found = await gather(*(self._worth(spot, session) for spot in spots))
        return [worth for worth, _ in found], sum(fed for _, fed in found)

    async def _worth(self, spot: Spot, session: Session) -> tuple[float, int]:
        canvas, fed = await self._finished(spot)
        answer = canvas[spot.begin :]
        stop = next((i for i, x in enumerate(answer) if x is None), len(answer))
        stop = next((i + 1 for i, x in enumerate(answer[:stop]) if x in spot.ends), stop)
        tokens, reader = [x for x in answer[:stop] if x is not None], session.fork()
        try:
            scores = await reader.score(
                Draft.chain(canvas[spot.begin - 1] or 0, tokens[:-1]), Want()
            )
            logp = [max(scores.logp(i, (x,))[0], LEAST) for i, x in enumerate(tokens)]
        finally:
            reader.close()
        return sum(logp) / len(logp), fed

    async def _finished(self, spot: Spot) -> tuple[Canvas, int]:
        """The canvas with the likeliest token in each gap that the model sees, and what was fed for it."""
        if not spot.block:
            return spot.canvas, 0
        board = self.base.denoiser.open(len(spot.canvas), spot.begin)
        try:
            feed = self.base.feed(spot, None)
            rows = gaps(spot.canvas, spot.begin, feed[-1] + 1)
            tokens = [int(x) for x in (await board.score(spot.canvas, rows, feed)).argmax(-1)]
        finally:
            board.close()
        return filled(spot.canvas, Edit(write=tuple(zip(rows, tokens, strict=True)))), len(feed)

    def taken(self, worth_M: Tensor, rng: Rng) -> int:
        """Which of the edits is taken."""
        if not self.heat:
            return int(worth_M.argmax())
        return rng.categorical((worth_M / self.heat).softmax(-1))


@dataclass(frozen=True)
class _Tried:
    """Draw, try, take. session: of the judge, which knows the prompt."""

    how: Valued
    sight: Sight
    rng: Rng
    session: Session

    async def next(self, spot: Spot) -> Passed:
        base, rng = self.how.base, self.rng
        if not spot.passes:
            await self.session.prefill(Want(law=Reads.NOTHING))
        look, feed = await self.sight.look(spot)
        drawn = [
            base.unmasker.choose(spot.state, look, rng.at("candidate", m) if m else rng)
            for m in range(self.how.tries)
        ]
        steps = {edit: base.step(spot, look, feed, edit, state) for edit, state in drawn}
        edit, fed = drawn[0][0], len(feed)
        if len(steps) > 1:
            spots = tuple(step.spot for step in steps.values())
            worths, more = await self.how.worths(spots, self.session)
            worth, fed = dict(zip(steps, worths, strict=True)), fed + more
            worth_M = torch.tensor([worth[e] for e, _ in drawn], dtype=torch.float64)
            edit = drawn[self.how.taken(worth_M, rng.at("taken", spot.passes))][0]
        return Passed((steps[edit],), fed)

    def close(self) -> None:
        self.sight.close()
        self.session.close()
