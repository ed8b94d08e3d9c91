"""Once the best tokens stand clear of the second best, all gaps are filled at once (Prophet)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.methods.diffusion.loop.protocols import Unmasker
from polydec.methods.diffusion.loop.types import UnmaskerView, gap_positions

State = tuple[Any, int, int, range | None]
"""Of the unmasker below; passes so far; passes that are expected; positions of the region."""


def answer_region(first: int | None, count: int) -> range | None:
    """Say where in a canvas the answer stands.

    Args:
        first: Its first position, counted from the first gap, at least 0. None: it is not known.
        count: Its positions, at least 1.

    Returns:
        The positions; None where the first one is not known.
    """
    if first is None:
        return None
    return range(first, first + count)


@dataclass(frozen=True)
class EarlyCommitUnmasker:
    """Fills as `base` does until the best tokens stand clear, then fills all gaps at once.

    The measure is the mean distance of the two highest logits, over the gaps of `region`; without
    one, over the answer's gaps up to the first whose likeliest token ends it. When it reaches a
    bound, the rest of the canvas takes its likeliest tokens under the laws that tokens are drawn
    from, and that was the last pass. Known positions count only where `counted` says so, and chance
    has no part in the last pass; a region of which nothing counts reaches every bound. A pass that
    did not feed the whole canvas decides nothing.

    Attributes:
        base: Unmasker of the passes before.
        early: Bound in logits while less than `first` of the expected passes are done.
        middle: Bound in logits while less than `second` of them are done.
        late: Bound in logits after that.
        first: Share of the expected passes, 0 to 1.
        second: Share of the expected passes, `first` to 1.
        passes: Passes that an answer is expected to take. 0: one for each of its positions.
        region: Where in the canvas the answer stands: positions, counted from the first gap of all.
            None: it is not known.
        counted: The region's known positions count as well, with the distances that the model gives
            there, as far as the pass was asked for them (`known_positions`).

    Exact: no.
    Reduces to: base where the bounds are never reached (early = middle = late = inf); one pass for
    -inf.
    Source: Li et al., Prophet (2025), with `counted`.
    """

    base: Unmasker[Any]
    early: float = 7.5
    middle: float = 5.0
    late: float = 2.5
    first: float = 0.33
    second: float = 0.67
    passes: int = 0
    region: range | None = None
    counted: bool = False
    everywhere: ClassVar[bool] = True

    @property
    def exactness(self) -> Exactness:
        return Exactness.APPROXIMATE

    def start_state(self, canvas: Canvas) -> State:
        gaps = gap_positions(canvas)
        return (
            self.base.start_state(canvas),
            0,
            self.passes or len(gaps),
            self._region_positions(gaps),
        )

    def enter_block(self, state: State, count: int) -> State:
        """Begin a block of the base rule; passes are counted over the whole answer.

        Args:
            state: State of the base rule, passes so far, passes expected, region.
            count: Gaps of the block that begins.

        Returns:
            The state with which the block begins.
        """
        return self.base.enter_block(state[0], count), *state[1:]

    def choose_edit(self, state: State, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, State]:
        """Fill everything if the bound is reached, else what the base rule chooses.

        Args:
            state: State of the base rule, passes so far, passes expected, region.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        # This pass counts as done: progress reaches 1 in the last expected pass.
        below, done, expected, region = state
        bound = self._bound((done + 1) / expected)
        if look.complete and self._mean_distance(look, region) >= bound:
            edit = look.fill_edit(range(len(look.rows)), look.likeliest)
            return edit, (below, done + 1, expected, region)
        # The base rule sees the block alone: the other rows were asked for to measure the distance.
        edit, below = self.base.choose_edit(below, look.inside_block(), rng)
        return edit, (below, done + 1, expected, region)

    def known_positions(self, state: State, block: range) -> range:
        """Return the positions whose laws count where a token stands: those of the region.

        Args:
            state: State of the base rule, passes so far, passes expected, region.
            block: Positions that may be filled now; they do not matter.
        """
        if not self.counted:
            return range(0)
        return state[3] or range(0)

    def _region_positions(self, gaps: tuple[int, ...]) -> range | None:
        """Return the region's positions in the canvas, given the gaps of an answer that begins."""
        if self.region is None or not gaps:
            return None
        first = gaps[0]
        count = gaps[-1] + 1 - first
        if self.region.start >= count:
            raise RequestError(
                f"region begins at {self.region.start}: the answer has {count} positions, counted from 0"
            )
        return range(first + self.region.start, first + self.region.stop)

    def _mean_distance(self, look: UnmaskerView, region: range | None) -> float:
        """Return the mean distance of the best two logits over the answer's gaps."""
        two_R2 = look.logp_RV.topk(2, dim=-1).values
        distance_R = two_R2[:, 0] - two_R2[:, 1]
        if region is None:
            # What follows a predicted end is padding, whose large distances would say nothing.
            end = next((i for i, x in enumerate(look.likeliest) if x in look.ends), len(look.rows))
            inside_R = distance_R[: end + 1]
        else:
            inside_R = distance_R[[i for i, r in enumerate(look.rows) if r in region]]
            known = [look.written[r].clear for r in region if r in look.written]
            inside_R = torch.cat([inside_R, inside_R.new_tensor(known)])
        # A gap of which one token is possible is no clearer for it: it counts as a known position.
        open_R = inside_R[inside_R.isfinite()]
        if not len(open_R):
            return float("inf")
        return float(open_R.mean())

    def _bound(self, progress: float) -> float:
        if progress < self.first:
            return self.early
        if progress < self.second:
            return self.middle
        return self.late
