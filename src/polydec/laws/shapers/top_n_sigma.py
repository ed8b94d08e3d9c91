"""Top-n-sigma: tokens within n standard deviations of the largest logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import ValueNote
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import at_least
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext


@dataclass(frozen=True)
class TopNSigmaRule:
    """Keep w >= max - n * sigma, n > 0 (usual: 1 to 1.5), sigma being the standard deviation
    (divided by the count) of the finite log-weights. Which tokens stay does not depend on a
    temperature before it; a truncation before it narrows sigma.

    Reduces to: the identity as n grows. Raises RequestError outside the range.
    Source: Tang et al., "Top-n-sigma: not all logits are you need", 2024.
    """

    n: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.n > 0.0:
            raise RequestError(
                f"top_n_sigma is {self.n}: it must be above 0 (leave it out to keep every token)"
            )

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
        """Cut off the logits further than n standard deviations below the largest.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        # Tokens that another rule has banned are not counted: sigma would be infinite.
        if float(logw_V.min()) > NEG_INF:
            finite_V = logw_V
        else:
            finite_V = logw_V[logw_V > NEG_INF]
        sigma = float(finite_V.std(correction=0))
        # All logits are equal up to rounding: every token is as good as the largest.
        if sigma == 0.0:
            return logw_V
        # A temperature scales the distance and sigma alike, so it changes nothing here.
        return at_least(logw_V, logw_V.max() - self.n * sigma)


def make_top_sigma_rule(
    setting: SamplingRuleContext,
    *,
    top_n_sigma: Annotated[
        float,
        ValueNote("0 or less keeps every token"),
        "keep logits within so many standard deviations of the largest",
    ] = 0.0,
) -> TopNSigmaRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        top_n_sigma: How many standard deviations; 0 or less turns the rule off. Default 0.

    Returns:
        The rule, or None where it is off.
    """
    if top_n_sigma > 0.0:
        return TopNSigmaRule(top_n_sigma)
    return None


RULE = SamplingRule(
    "top_n_sigma", make_top_sigma_rule, {"transformers": 170, "vllm": 170, "llamacpp": 100}
)
