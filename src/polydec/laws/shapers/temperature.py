"""Temperature: sharper below one, flatter above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext
from polydec.laws.shapers.greedy import GreedyRule

GREEDY_BELOW = 1e-5
HIGHEST = 1_000_000

Positive = Annotated[float, InRange(GREEDY_BELOW, HIGHEST), ValueNote("Greedy is the limit of 0")]


@dataclass(frozen=True)
class TemperatureRule:
    """w / temperature, temperature in 0.00001 to a million (for 0 take Greedy): further out floats
    would not hold.

    Reduces to: the identity at 1, Greedy in the limit of 0. Raises RequestError outside the range.
    Source: Ackley, Hinton and Sejnowski, "A learning algorithm for Boltzmann machines", 1985.
    """

    temperature: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_annotated_value("temperature", self.temperature, Positive)

    def start_state(self, prompt: Sequence[int]) -> None:
        return None

    def next_state(self, state: None, token: int) -> None:
        """Return None: this rule does not depend on the text before a token.

        Args:
            state: None.
            token: Token id that follows; not read.

        Returns:
            None.
        """
        return None

    def shape_law(self, state: None, logw_V: Tensor) -> Tensor:
        """Divide the log-weights by the temperature.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        return logw_V / self.temperature


def make_temperature_rule(
    setting: SamplingRuleContext,
    *,
    temperature: Annotated[
        float,
        InRange(0, HIGHEST),
        ValueNote("0 is greedy"),
        "below 1 sharper, above flatter; greedy below 0.00001",
    ] = 1.0,
) -> GreedyRule | TemperatureRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        temperature: 0 to a million; below 0.00001 is greedy, 1 turns the rule off. Default 1.

    Returns:
        The greedy rule, the temperature rule, or None at 1.
    """
    # Below this a division would overflow: the limit of temperature 0 is taken.
    if temperature < GREEDY_BELOW:
        return GreedyRule()
    if temperature != 1.0:
        return TemperatureRule(temperature)
    return None


RULE = SamplingRule(
    "temperature", make_temperature_rule, {"transformers": 100, "vllm": 100, "llamacpp": 180}
)
