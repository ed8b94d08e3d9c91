"""Typical sampling: tokens whose surprise is close to the expected one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import AtMost, GreaterThan, ValueNote, convert_annotated_value
from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import by_mass
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Mass = Annotated[
    float,
    GreaterThan(0),
    AtMost(1),
    ValueNote("1 keeps every token"),
    "keep tokens of about the expected surprise until they have this mass together",
]


@dataclass(frozen=True)
class TypicalRule:
    """In ascending order of |-ln p - entropy| keep tokens until they have the mass `mass`
    together, 0 < mass <= 1: the one that crosses it stays, and so does whatever ties with it. The
    likeliest token may go.

    Reduces to: the identity at 1. Raises RequestError outside the range.
    Source: Meister et al., "Locally typical sampling", 2023.
    """

    mass: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("typical_p", self.mass, Mass)

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
        """Cut off the tokens whose surprise is far from the entropy.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        if self.mass == 1.0:
            return logw_V
        logp_V = normalise_log_weights(logw_V)
        entropy = -(logp_V.exp() * logp_V).nansum()  # 0 * -inf of what has no weight counts as 0
        # Larger is closer to the expected surprise: |-log p - H| with its sign turned.
        near_V = -(logp_V + entropy).abs()
        edge, _ = by_mass(near_V, logp_V, self.mass)
        # Tokens that tie with the last one stay, too.
        return logw_V.masked_fill(near_V < edge, NEG_INF)


def make_typical_rule(setting: SamplingRuleContext, *, typical_p: Mass = 1.0) -> TypicalRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        typical_p: The mass, above 0 and at most 1; 1 turns the rule off. Default 1.

    Returns:
        The rule, or None where it is off.
    """
    if typical_p < 1.0:
        return TypicalRule(typical_p)
    return None


RULE = SamplingRule(
    "typical_p", make_typical_rule, {"transformers": 140, "vllm": 140, "llamacpp": 120}
)
