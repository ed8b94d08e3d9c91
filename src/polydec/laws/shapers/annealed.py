"""Exploratory annealed decoding: a temperature that starts high and falls along the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import AtLeast, GreaterThan, InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Start = Annotated[
    float,
    InRange(0, 1000),
    ValueNote("0 changes nothing, 1.2 is published"),
    "annealing: the temperature with which an answer begins",
]
End = Annotated[
    float, InRange(0.00001, 1000), "annealing: the temperature below which it never falls"
]
Scale = Annotated[
    float,
    GreaterThan(0),
    ValueNote("it falls by e - 1 in that time"),
    "annealing: tokens that the fall takes",
]
Warmup = Annotated[int, AtLeast(0), "annealing: first tokens, which have temperature 1"]


@dataclass(frozen=True)
class AnnealedTemperatureRule:
    """w / tau(t) at token t of the answer (0 is the first): tau is 1 for t < warmup, then max(1 +
    start - exp(t / scale), end). It falls through 1 at t = scale ln(start) and reaches `end` at
    scale ln(1 + start - end). A temperature beside it divides once more.

    start_at: start, above 0, to 1,000; end_at: end, 0.00001 to 1,000; scale: tokens, above 0 (the
    published code has 20 times its d_0 of 25); warmup: 0 and more.

    Reduces to: a constant temperature `end` at warmup 0 where end >= start; the identity where both
    are 1. Raises RequestError outside the ranges.
    Source: "Let it calm: exploratory annealed decoding for verifiable reinforcement learning",
    2025.
    """

    start_at: float = 1.2
    end_at: float = 0.1
    scale: float = 500.0
    warmup: int = 10
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_annotated_value("anneal_start", self.start_at, Start)
        convert_annotated_value("anneal_end", self.end_at, End)
        convert_annotated_value("anneal_scale", self.scale, Scale)
        convert_annotated_value("anneal_warmup", self.warmup, Warmup)

    def start_state(self, prompt: Sequence[int]) -> int:
        return 0

    def next_state(self, state: int, token: int) -> int:
        """Count one more token of the answer.

        Args:
            state: Tokens of the answer so far.
            token: Token id that follows; not read.

        Returns:
            The count behind it.
        """
        return state + 1

    def shape_law(self, state: int, logw_V: Tensor) -> Tensor:
        """Divide the log-weights by the temperature at this place of the answer.

        Args:
            state: Tokens of the answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        return (logw_V - logw_V.max()) / self.temperature_at(
            state
        )  # beside another temperature it must not overflow

    def temperature_at(self, t: int) -> float:
        """At token t of the answer."""
        # The first tokens are drawn at temperature 1.
        if t < self.warmup:
            return 1.0
        # tau(t) = max(1 + start - exp(t / scale), end); the exponent is limited so that exp stays
        # finite.
        return max(1.0 + self.start_at - math.exp(min(t / self.scale, 40.0)), self.end_at)


def make_annealed_temperature_rule(
    setting: SamplingRuleContext,
    *,
    anneal_start: Start = 0.0,
    anneal_end: End = 0.1,
    anneal_scale: Scale = 500.0,
    anneal_warmup: Warmup = 10,
) -> AnnealedTemperatureRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        anneal_start: Temperature with which an answer begins, 0 to 1,000; 0 turns the rule off.
            Default 0.
        anneal_end: Temperature below which it never falls. Default 0.1.
        anneal_scale: Tokens in which the temperature falls by e - 1. Default 500.
        anneal_warmup: First tokens, which have temperature 1. Default 10.

    Returns:
        The rule, or None where it is off.
    """
    if anneal_start:
        return AnnealedTemperatureRule(anneal_start, anneal_end, anneal_scale, anneal_warmup)
    return None


RULE = SamplingRule(
    "anneal",
    make_annealed_temperature_rule,
    {"transformers": 101, "vllm": 101, "llamacpp": 181},
    counts=("anneal_start", "anneal_end", "anneal_scale", "anneal_warmup"),
)
