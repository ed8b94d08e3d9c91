"""Gaps in an order that was known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.methods.diffusion.loop.states import ONE_A_PASS, no_state, still_none
from polydec.methods.diffusion.loop.types import Rank, UnmaskerView, sort_by_rank


@dataclass(frozen=True)
class InOrderUnmasker:
    """Fills the gaps of the block whose turn it is.

    Attributes:
        count: Gaps that a pass fills, at least 1.
        rank: Rank of each position of the canvas, the lowest first; () is an order from the left.

    Exact: one gap a pass gives a draw from the model's law in this order, whatever it is.
    Reduces to: left_to_right without `rank`; at_random, in law, where ranks are drawn.
    """

    count: int = 1
    rank: Rank = ()
    everywhere: ClassVar[bool] = False
    start_state = no_state
    enter_block = still_none

    @property
    def exactness(self) -> Exactness:
        if self.count > 1:
            return Exactness.APPROXIMATE
        return Exactness.LAW

    @property
    def unexercised(self) -> Mapping[str, str]:
        if self.count > 1:
            return {}
        return ONE_A_PASS

    def choose_edit(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        """Fill the next gaps of the order.

        Args:
            state: None.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look = look.inside_block()
        # Ranks are by position, edits by row: this maps one to the other.
        at = {r: i for i, r in enumerate(look.rows)}
        chosen = [at[r] for r in sort_by_rank(look.rows, self.rank)[: self.count]]
        return look.fill_edit(chosen, {i: look.draw_token(i, rng) for i in chosen}), None
