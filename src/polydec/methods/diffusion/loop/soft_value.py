"""Draw several edits for each pass, and take one that leads to a good answer (SVDD)."""

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
from polydec.methods.diffusion.loop.canvas_rewards import CanvasValue, CanvasValueReader
from polydec.methods.diffusion.loop.denoising import BoardReader, DenoisingDecoder
from polydec.methods.diffusion.loop.filling import CanvasPass, FillingState


@dataclass(frozen=True)
class SoftValueDenoising:
    """Draws several edits for each pass, and takes one by the value of the canvas it leads to.

    From each pass's laws the unmasker of `base` draws `tries` edits, independently. A `value`
    predicts what the answer will be worth that each of them leads to. One edit is taken with
    probability in proportion to exp(worth / heat), and the others are dropped. Where all edits are
    the same, no value is asked for. Passes of the model that a value needs count as positions that
    were fed, not as passes.

    Attributes:
        base: Decoder that makes the canvas and its passes.
        value: Predicts the worth of a canvas with gaps.
        tries: Edits that are drawn for each pass, at least 1.
        heat: Temperature of the choice, at least 0, in units of the worth. 0: the first of the best
            is taken.

    Exact: no, but for tries = 1: the law is bent towards what is worth much, less than a true soft
    value would bend it.
    Reduces to: base, token for token, for tries = 1; base, in law, for values that are all the same
    or as heat grows.
    Source: Li et al., derivative-free guidance with soft value-based decoding (SVDD, 2024); there
    how many gaps an edit fills is left to chance, and the released code takes the best.
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

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        return await self.base.fill_canvases(request, rng, into, self._begin)

    def _begin(self, request: Request, rng: Rng) -> _SoftValuePasses:
        reader = self.value.open_reader(self.base, request.prompt)
        return _SoftValuePasses(self, self.base.open_passes(request), rng, reader)

    def chosen_edit(self, worth_M: Tensor, rng: Rng) -> int:
        """Choose one of the drawn edits.

        Args:
            worth_M: Predicted worth of each edit, shape ``[M]``.
            rng: Random stream of this choice.

        Returns:
            Index of the edit.
        """
        # Heat 0 is the limit of the softmax: the best, the first of equal ones.
        if not self.heat:
            return int(worth_M.argmax())
        return rng.draw_categorical((worth_M / self.heat).softmax(-1))


@dataclass(frozen=True)
class _SoftValuePasses:
    """Draw, try, take."""

    how: SoftValueDenoising
    sight: BoardReader
    rng: Rng
    reader: CanvasValueReader

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        base = self.how.base
        rng = self.rng
        look, feed = await self.sight.look_at_board(spot)
        # The first try draws from the answer's own stream, so tries = 1 gives the text of `base`.
        drawn = [
            base.unmasker.choose_edit(
                spot.state, look, rng.child_stream("candidate", m) if m else rng
            )
            for m in range(self.how.tries)
        ]
        # Equal edits lead to one canvas: each distinct one is valued once.
        steps = {edit: base.apply_edit(spot, look, feed, edit, state) for edit, state in drawn}
        edit = drawn[0][0]
        fed = len(feed)
        if len(steps) > 1:
            spots = tuple(step.spot for step in steps.values())
            worths, more = await self.reader.state_values(spots)
            worth = dict(zip(steps, worths, strict=True))
            fed = fed + more
            # The draw is over tries, not over distinct edits: an edit drawn twice counts twice.
            worth_M = torch.tensor([worth[e] for e, _ in drawn], dtype=torch.float64)
            edit = drawn[self.how.chosen_edit(worth_M, rng.child_stream("taken", spot.passes))][0]
        return CanvasPass((steps[edit],), fed)

    def close(self) -> None:
        self.sight.close()
        self.reader.close()
