"""Tokens that the model was least sure of become gaps once more, and are filled anew (ReMDM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polydec.base.options import at_least_one
from polydec.core.decoder import Streams
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import BoardReader, DenoisingDecoder
from polydec.methods.diffusion.loop.filling import CanvasPass, FillingState, FillingStep
from polydec.methods.diffusion.loop.types import UnmaskerView, best_indices


@dataclass(frozen=True)
class RemaskingDenoising:
    """Runs `base`, with further passes in each block that take unsure tokens back.

    Each further pass fills `count` gaps, those that the model is surest of now, and makes gaps of
    the `count` tokens of the block that the model was least sure of when they were written. They
    come after the share `late` of the block's passes, or when the block is complete before that.
    The other passes are those of `base`. No token of a block is final before its last further pass.

    Attributes:
        base: Decoder that fills the canvas.
        again: Further passes of a block, at least 0.
        count: Tokens that such a pass takes back, and gaps that it fills, at least 1.
        late: Share of the block's passes before the further ones may come, 0 to 1.
        steps: Passes that `base` gives a block; 0: one for each gap.

    Exact: no: a token that stays was chosen beside others that did not.
    Reduces to: base for again = 0.
    Source: Wang et al., "Remasking discrete diffusion models with inference-time scaling" (2025),
    its loop over a canvas that is nearly whole, by confidence, as ParallelBench (Kang et al., 2025)
    measures it. There what is remasked is drawn, with a chance that grows as confidence falls;
    here, as in ParallelBench, the least sure tokens are.
    """

    base: DenoisingDecoder
    again: int = 2
    count: int = 1
    late: float = 0.875
    steps: int = 0

    def __post_init__(self) -> None:
        at_least_one(self, "count")

    @property
    def exactness(self) -> Exactness:
        if self.again:
            return Exactness.APPROXIMATE
        return self.base.exactness

    @property
    def unexercised(self) -> Mapping[str, str]:
        reasons = dict(self.base.unexercised)
        # Further passes fill several gaps, so several in parallel do occur.
        if self.again and self.count > 1:
            reasons.pop("parallel", None)
        return reasons

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
            request, rng, into, lambda r, own: _RemaskingPasses(self, self.base.open_passes(r), own)
        )


@dataclass(eq=False)
class _RemaskingPasses:
    """Passes of one answer.

    Attributes:
        start: First position of the block that is being filled.
        given: Passes that the block is given.
        done: Further passes of the block that were scheduled.
        due: Whether the next pass is a further one.
        sure: Log-probability of each written token of the block, by position, when it was written.
    """

    how: RemaskingDenoising
    sight: BoardReader
    rng: Rng
    start: int = -1
    given: int = 0
    done: int = 0
    due: bool = False
    sure: dict[int, float] = field(default_factory=dict[int, float])

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        how = self.how
        base = self.how.base
        # A new block starts the count of further passes anew.
        if spot.block.start != self.start:
            self.start = spot.block.start
            self.done = 0
            self.due = False
            self.sure = {}
            self.given = how.steps or sum(spot.canvas[i] is None for i in spot.block)
        look, feed = await self.sight.look_at_board(spot)
        edit, state = self._chosen(spot, look)
        step = base.apply_edit(spot, look, feed, edit, state)
        # The confidence of a token is that of the pass that wrote it.
        at = {r: i for i, r in enumerate(look.rows)}
        self.sure |= {p: float(look.logp_RV[at[p], x]) for p, x in step.edit.write}
        return CanvasPass((replace(step, spot=self._after(spot, step, state)),), len(feed))

    def _chosen(self, spot: FillingState, look: UnmaskerView) -> tuple[TextEdit, Any]:
        # A regular pass asks the unmasker. A further pass fills as many gaps as were taken back.
        if not self.due:
            return self.how.base.unmasker.choose_edit(spot.state, look, self.rng)
        look = look.inside_block()
        tokens = look.draw_tokens(self.rng)
        return look.fill_edit(
            best_indices(look.token_confidence(tokens), self.how.count), tokens
        ), spot.state

    def _after(self, spot: FillingState, step: FillingStep, state: Any) -> FillingState:
        """Where the pass leads, with gaps where tokens are taken back."""
        how = self.how
        after = step.spot
        left = not after.block or after.block.start != self.start
        # Once this holds it holds for the rest of the block: further passes follow each other.
        late = spot.step + 1 >= how.late * self.given
        self.due = self.done < how.again and (left or late)
        # The further pass that comes next needs gaps: the unsure tokens are taken back right away.
        if self.due:
            self.done += 1
            return how.base.state_after_remasking(spot, after, state, self._unsure(after))
        if left:
            return after
        # The text shows a token where one was taken back, until it is written anew: nothing from
        # there on may be final.
        first = next(i for i in after.block if after.canvas[i] is None)
        return replace(after, final=self.start if self.done < how.again else first)

    def _unsure(self, after: FillingState) -> frozenset[int]:
        """Return the written positions of the block that the model was least sure of.

        Only positions up to the block's end count; of equal ones the first.
        """
        canvas = after.canvas
        end = next((p for p in sorted(self.sure) if canvas[p] in after.ends), len(canvas))
        stand = [p for p in self.sure if p <= end and canvas[p] is not None]
        return frozenset(sorted(stand, key=lambda p: (self.sure[p], p))[: self.how.count])

    def close(self) -> None:
        self.sight.close()
