"""Tokens that stay clear over several passes, on average (CCD)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import approximate_exactness
from polydec.methods.diffusion.loop.types import (
    Pace,
    UnmaskerView,
    best_indices,
    bounded_pass_quota,
    row_entropy,
)

History = tuple[Mapping[int, Tensor], ...]
"""Of the last passes, the oldest first: of the clearest gaps that stayed gaps the law, p_V by
position.
"""

Rank = Callable[[UnmaskerView], Tensor]
"""A score of each row, R: how clear its law is by the rule that decides where passes do not agree.
"""


def by_entropy(look: UnmaskerView) -> Tensor:
    """Score rows by entropy, the lowest first, as the schedule `dream` does."""
    return -look.entropy_R


def by_probability(look: UnmaskerView) -> Tensor:
    """Score rows by the likeliest token's probability, as `llada` does without chance."""
    return look.logp_RV.max(-1).values


@dataclass(frozen=True)
class CoherentUnmasker:
    """Writes gaps whose laws stay clear over several passes, on average.

    A pass looks at the `width` gaps of lowest entropy that were among the lowest in the last
    `depth` - 1 passes of the block, too. The mean of a gap's laws in these passes has low entropy
    where the model was sure, and did not change its mind with the context. Written are all gaps
    whose mean law has at most `most` nats and at most `slack` more than the best one. Where there
    is none, the gap whose entropy is lowest now is written. With a budget so many are written in
    every pass: the best of these gaps, whatever their nats, and those whose entropy is lowest now
    where they are too few. A token is drawn from the law of this pass.

    Attributes:
        depth: Passes that are averaged, at least 1.
        width: Gaps that a pass compares, at least 1.
        slack: Nats above the best mean law that are allowed, at least 0.
        most: Most nats of a mean law, at least 0.
        count: Budget of a pass in tokens. 0: as many as are clear.
        steps: The budget is that of a schedule that fills a block in so many passes. 0: it is
            `count`.
        rank: Score by which gaps are compared on this pass's laws, in place of the lowest entropy.
            Mean laws are always judged by their entropy.

    Exact: no.
    Reduces to: entropy, one a pass, for depth = 1 or count = 1 with width = 1; entropy with as many
    a pass for depth = 1; under `by_probability`, without chance, confidence in the place of
    entropy.
    Source: Chen et al., Beyond confidence (CCD, 2025); slack and most are ours, the paper gives no
    value.
    """

    depth: int = 3
    width: int = 4
    slack: float = 0.1
    most: float = 0.5
    count: int = 0
    steps: int = 0
    rank: Rank = by_entropy
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness

    def start_state(self, canvas: Canvas) -> tuple[History, Pace]:
        return (), (0, 0)

    def enter_block(self, state: tuple[History, Pace], count: int) -> tuple[History, Pace]:
        """Forget the block before, and note how many gaps the new one has.

        Args:
            state: History of laws and pace after the block before; not needed.
            count: Gaps of the block that begins.

        Returns:
            The state with which the block begins.
        """
        return (), (count, 0)

    def choose_edit(
        self, state: tuple[History, Pace], look: UnmaskerView, rng: Rng
    ) -> tuple[TextEdit, tuple[History, Pace]]:
        """Write the gaps whose mean law over the last passes is clear.

        Args:
            state: Laws of the clearest gaps in the last passes, and the pace of the block.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look, (before, pace) = look.inside_block(), state
        # Candidates: the rows in order of how clear their laws are now.
        clearest = best_indices(self.rank(look), len(look.rows))
        if self.steps:
            budget = bounded_pass_quota(pace, self.steps, len(look.rows))
        else:
            budget = self.count
        chosen = self._chosen(self._agreed(before, look, clearest[: self.width]), clearest, budget)
        # The history holds the laws of the clearest gaps that stay gaps, for the last depth - 1
        # passes.
        left = [i for i in clearest if i not in chosen][: self.width]
        law_RV = look.logp_RV.exp()
        history = (*before, {look.rows[i]: law_RV[i] for i in left})
        history = history[max(0, len(history) - self.depth + 1) :]
        edit = look.fill_edit(chosen, {i: look.draw_token(i, rng) for i in chosen})
        return edit, (history, (pace[0], pace[1] + 1))

    def _chosen(
        self, agreed: list[tuple[float, int]], clearest: list[int], budget: int
    ) -> list[int]:
        """Return the rows that are written.

        Args:
            agreed: Pairs (nats of the mean law, row), the clearest first.
            clearest: All rows, by how clear their laws are now.
            budget: Rows to write. 0: as many as are clear.
        """
        # A budget is met in any case; the rows that agree go first.
        if budget:
            first = [i for _, i in agreed][:budget]
            return [*first, *(i for i in clearest if i not in first)][:budget]
        # Without a budget the bar lies `slack` nats above the clearest mean law, never above
        # `most`.
        if agreed:
            bar = min(agreed[0][0] + self.slack, self.most)
        else:
            bar = 0.0
        return [i for nats, i in agreed if nats <= bar] or clearest[:1]

    def _agreed(
        self, state: History, look: UnmaskerView, candidates: list[int]
    ) -> list[tuple[float, int]]:
        """Return the candidates that were among the clearest in all earlier passes of the history.

        Each comes with the nats of its mean law, the least first.
        """
        known = [i for i in candidates if all(look.rows[i] in laws for laws in state)]
        if not state or not known:
            return []
        law_RV = look.logp_RV.exp()
        # The mean over passes of each candidate's law (probabilities, not logits), [R, V].
        mean_RV = torch.stack(
            [
                torch.stack([*(laws[look.rows[i]] for laws in state), law_RV[i]]).mean(0)
                for i in known
            ]
        )
        nats_R = row_entropy(mean_RV.log())
        return [(float(nats_R[j]), known[j]) for j in best_indices(-nats_R, len(known))]
