"""Top-p (nucleus): the fewest likeliest tokens that together have the mass p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import AtMost, GreaterThan, ValueNote, convert_annotated_value
from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import at_least, by_mass
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Mass = Annotated[
    float,
    GreaterThan(0),
    AtMost(1),
    ValueNote("1 keeps every token"),
    "keep the fewest likeliest tokens that have this mass together",
]


@dataclass(frozen=True)
class TopPRule:
    """In descending order of probability (lower ids first among equals) a token stays where those
    before it have less than `p` together, 0 < p <= 1. Among equals at the edge only as many stay as
    are needed.

    Reduces to: the identity at p = 1, Greedy as p goes to 0. Raises RequestError outside the range.
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """

    p: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_annotated_value("top_p", self.p, Mass)

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
        """Cut off the tokens after the fewest likeliest ones that have the mass p together.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        # All of the mass: rounding must not cut anything off.
        if self.p == 1.0:
            return logw_V
        edge, equals = by_mass(logw_V, normalise_log_weights(logw_V), self.p)
        out_V = at_least(logw_V, edge)
        # Of the tokens at the edge the lowest ids stay, as many as the mass needs.
        if equals is not None:
            out_V[(logw_V == edge).nonzero()[equals:, 0]] = NEG_INF
        return out_V


def make_top_p_rule(setting: SamplingRuleContext, *, top_p: Mass = 1.0) -> TopPRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        top_p: The mass, above 0 and at most 1; 1 turns the rule off. Default 1.

    Returns:
        The rule, or None where it is off.
    """
    if top_p < 1.0:
        return TopPRule(top_p)
    return None


RULE = SamplingRule("top_p", make_top_p_rule, {"transformers": 120, "vllm": 130, "llamacpp": 130})
