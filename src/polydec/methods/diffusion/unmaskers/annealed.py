"""The surest tokens, but for a noise that fades (MaskGIT)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.methods.diffusion.loop.states import (
    approximate_exactness,
    draw_block_tokens,
    new_pace,
    no_pace,
    unexercised_by_steps,
)
from polydec.methods.diffusion.loop.types import Pace, UnmaskerView, best_indices

COLDEST = 0.001
"""Least temperature of draws."""

MaskCurve = Callable[[float, int], float]
"""(share of the passes that are done, 0 to 1; gaps at the begin) -> share that is masked still."""


def _cosine_curve(done: float, count: int) -> float:
    return math.cos(math.pi * done / 2)


def _linear_curve(done: float, count: int) -> float:
    return 1 - done


def _square_curve(done: float, count: int) -> float:
    return 1 - done**2


def _power_curve(done: float, count: int) -> float:
    return 1 - done**2.5


def _cubic_curve(done: float, count: int) -> float:
    return 1 - done**3


def _root_curve(done: float, count: int) -> float:
    return 1 - math.sqrt(done)


def _log_curve(done: float, count: int) -> float:
    return -math.log2(done) / math.log2(max(2, count))


def _exponential_curve(done: float, count: int) -> float:
    return 1 - 2 ** (-math.log2(max(2, count)) * (1 - done))


CURVES: Mapping[str, MaskCurve] = MappingProxyType(
    {
        "cosine": _cosine_curve,
        "linear": _linear_curve,
        "square": _square_curve,
        "power": _power_curve,
        "cubic": _cubic_curve,
        "root": _root_curve,
        "log": _log_curve,
        "exponential": _exponential_curve,
    }
)
"""How many gaps are left while passes go by: those above linear fill few at first and many at last."""


@dataclass(frozen=True)
class AnnealedUnmasker:
    """Fills as many gaps a pass as a curve says, the surest ones but for a noise that fades.

    Each gap of the block gets a drawn token. Its score is the log-probability of that token plus
    noise times (1 - r) times Gumbel noise, where r is the share of the passes that are done behind
    this one; the highest scores are written, and the others are gaps again. Of N0 gaps at the begin
    floor(N0 curve(r)) are left, at least 1 and at least one fewer than before, and the last pass
    fills all. Highest scores under Gumbel noise are draws without replacement, and are made so.

    Attributes:
        steps: Passes that a block is given, 1 or more; fewer where it has fewer gaps. Default 12.
        noise: Strength of the noise at first, 0 or more. Default 4.5.
        curve: One of `CURVES`. Default "cosine".
        coolest: Temperature at which the last pass draws, 0.01 to 1; from 1 on it falls with the
            root of the share of the passes that are done. Scores are those of the law itself.
            Default 1: every pass draws from the law.
        heat: In place of coolest: temperature of the draws at first, which falls as the noise does,
            to 0.001 at the last pass. Default 0: coolest says how they fall.

    Exact: no: tokens of one pass do not see each other.
    Reduces to: `confidence` with drawn tokens for noise 0 and the linear curve; all gaps in one pass
    for one step; a random order as the noise grows.
    Source: Chang et al., "MaskGIT: masked generative image transformer" (2022).
    """

    steps: int = 12
    noise: float = 4.5
    curve: str = "cosine"
    coolest: float = 1.0
    heat: float = 0.0
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_pace
    enter_block = new_pace
    unexercised = unexercised_by_steps

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RequestError(f"steps is {self.steps}: it must be at least 1")
        if not 0 <= self.noise <= 1000:
            raise RequestError(f"noise is {self.noise}: it must lie in 0 to 1000")
        if not 0.01 <= self.coolest <= 1:
            raise RequestError(f"coolest is {self.coolest}: it must lie in 0.01 to 1")
        if self.curve not in CURVES:
            raise RequestError(f"curve is {self.curve!r}: it must be one of {', '.join(CURVES)}")
        if not 0 <= self.heat <= 1000:
            raise RequestError(f"heat is {self.heat}: it must lie in 0 to 1000")

    def choose_edit(self, state: Pace, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Pace]:
        """Fill the gaps of the highest scores.

        Args:
            state: Gaps of the block at its begin, and its passes so far.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        begun, step = state
        look, tokens, confidence_R = draw_block_tokens(self.cooled_view(look, step), rng)
        count = len(tokens) - self.gaps_left(begun, step, len(tokens))
        chosen = draw_by_score(
            confidence_R.log(), self.noise_at(step), count, rng.child_stream("order", look.step)
        )
        return look.fill_edit(chosen, tokens), (begun, step + 1)

    def noise_at(self, step: int) -> float:
        """The strength of the noise at a pass of a block, 0 at the last one. step: from 0."""
        return self.noise * self.share_left(step)

    def share_left(self, step: int) -> float:
        """The share of the passes that are left behind one, 0 at the last. step: from 0."""
        return max(0.0, 1 - (step + 1) / self.steps)

    def temperature_at(self, step: int) -> float:
        """The temperature of a pass's draws, on top of the request's own rules. step: from 0."""
        # At 0 there would be no law left to draw from.
        if self.heat:
            return max(self.heat * self.share_left(step), COLDEST)
        done = min(1.0, (step + 1) / self.steps)
        return self.coolest + (1 - self.coolest) * (1 - math.sqrt(done))

    def cooled_view(self, look: UnmaskerView, step: int) -> UnmaskerView:
        """What a pass shows, with the temperature at which its tokens are drawn.

        Args:
            look: What it shows.
            step: Passes of the block before it.

        Returns:
            The view, whose rules of sampling end with the temperature; itself where that is 1.
        """
        temperature = self.temperature_at(step)
        if temperature == 1:
            return look
        return replace(look, shapers=(*look.shapers, TemperatureRule(temperature)))

    def gaps_left(self, begun: int, step: int, now: int) -> int:
        """Count the gaps that a pass leaves.

        Args:
            begun: Gaps of the block at its begin.
            step: Passes of the block before this one.
            now: Gaps of the block before this pass, at least 1.

        Returns:
            Fewer than `now`.
        """
        done = (step + 1) / self.steps
        if done >= 1:
            return 0
        return min(max(1, math.floor(begun * CURVES[self.curve](done, begun))), now - 1)


def draw_by_score(logp_R: Tensor, noise: float, count: int, rng: Rng) -> list[int]:
    """Choose the highest of some log-probabilities plus `noise` times Gumbel noise.

    Args:
        logp_R: Log-probabilities, shape ``[R]``.
        noise: Strength of the noise, 0 or more; 0: the highest themselves.
        count: How many, at most R.
        rng: Random stream of this choice.

    Returns:
        Indices.
    """
    if noise == 0:
        return best_indices(logp_R, count)
    # logp / noise + Gumbel has the same order: its first k are k draws without replacement.
    weight_R = torch.softmax(logp_R.double() / noise, -1)
    drawn = list(rng.without_replacement(weight_R, count))
    if len(drawn) == count:
        return drawn
    # Weights too small for a number lose every draw: the highest of them come last.
    taken = frozenset(drawn)
    rest = [i for i in best_indices(logp_R, len(logp_R)) if i not in taken]
    return [*drawn, *rest[: count - len(drawn)]]
