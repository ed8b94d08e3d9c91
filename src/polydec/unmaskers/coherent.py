"""Tokens that stay clear over several passes, on average (CCD)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.core.rng import Rng
from polydec.core.types import Edit
from polydec.families.diffusion.states import approximate
from polydec.families.diffusion.types import Canvas, Look, best, entropy

History = tuple[Mapping[int, Tensor], ...]
"""Of the last passes, the oldest first: of the clearest gaps that stayed gaps the law, p_V by position."""


@dataclass(frozen=True)
class Coherent:
    """Looks at the `width` gaps of lowest entropy that were among the lowest in the last `depth` - 1 passes of the block, too.
    Of the mean of a gap's laws in these passes the entropy is low where the model was sure, and did not change its mind with
    the context. Written are all gaps whose mean law has at most `most` nats and at most `slack` more than the best one; where
    there is none, the gap whose entropy is lowest now. With a budget so many are written in every pass: the best of these
    gaps, whatever their nats, and those whose entropy is lowest now where they are too few. A token is drawn from the law of
    this pass.

    depth, width: at least 1; slack, most: nats, at least 0; count: the budget (0: as many as are clear).

    Exact: no.
    Reduces to: entropy, one a pass, for depth = 1 or count = 1 with width = 1; entropy with as many a pass for depth = 1.
    Source: Chen et al., Beyond confidence (CCD, 2025); slack and most are ours, the paper gives no value.
    """

    depth: int = 3
    width: int = 4
    slack: float = 0.1
    most: float = 0.5
    count: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate

    def start(self, canvas: Canvas) -> History:
        return ()

    def enter(self, state: History, count: int) -> History:
        return ()

    def choose(self, state: History, look: Look, rng: Rng) -> tuple[Edit, History]:
        look = look.inside()
        clearest = best(-look.entropy_R, len(look.rows))
        chosen = self._chosen(self._agreed(state, look, clearest[: self.width]), clearest)
        left = [i for i in clearest if i not in chosen][: self.width]
        law_RV = look.logp_RV.exp()
        history = (*state, {look.rows[i]: law_RV[i] for i in left})
        return look.edit(chosen, {i: look.token(i, rng) for i in chosen}), history[
            max(0, len(history) - self.depth + 1) :
        ]

    def _chosen(self, agreed: list[tuple[float, int]], clearest: list[int]) -> list[int]:
        """The rows that are written; agreed: (nats, row), the clearest mean law first; clearest: all rows by their laws now."""
        if self.count:
            first = [i for _, i in agreed][: self.count]
            return [*first, *(i for i in clearest if i not in first)][: self.count]
        bar = min(agreed[0][0] + self.slack, self.most) if agreed else 0.0
        return [i for nats, i in agreed if nats <= bar] or clearest[:1]

    def _agreed(self, state: History, look: Look, candidates: list[int]) -> list[tuple[float, int]]:
        """Of these rows those that were among the clearest in all passes before, with the nats of their mean laws, the least
        first."""
        known = [i for i in candidates if all(look.rows[i] in laws for laws in state)]
        if not state or not known:
            return []
        law_RV = look.logp_RV.exp()
        mean_RV = torch.stack(
            [
                torch.stack([*(laws[look.rows[i]] for laws in state), law_RV[i]]).mean(0)
                for i in known
            ]
        )
        nats_R = entropy(mean_RV.log())
        return [(float(nats_R[j]), known[j]) for j in best(-nats_R, len(known))]
