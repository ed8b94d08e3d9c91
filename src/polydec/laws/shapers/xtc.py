"""XTC (exclude top choices): now and then, all of the likely tokens but the least likely of them go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import InRange, ValueNote, convert_annotated_value
from polydec.core.law import NEG_INF
from polydec.core.rng import Rng
from polydec.core.types import RowDetail
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Chance = Annotated[
    float,
    InRange(0, 1),
    ValueNote("0 changes nothing"),
    "chance at each position that the likely tokens go, but the least likely of them",
]
Threshold = Annotated[
    float,
    InRange(0, 1),
    ValueNote("above 0.5 nothing can go"),
    "from this probability on XTC takes a token for likely",
]


@dataclass(frozen=True)
class XtcRule:
    """With probability `probability` at each position: where two tokens or more have a probability
    of at least `threshold`, only the least likely of those (and its equals) stays of them; all
    tokens below the threshold stay too.

    The coin of a position is drawn at Rng.of_choice(seed, choice).child_stream("xtc", position), position being the
    number of tokens before it: a shaper is a pure function, so whoever looks at a node, drafter or
    verifier, once or ten times, sees one law. Coins of different positions are independent of each
    other and of the text's draws; over seeds the output therefore has the law of a sampler that
    tosses a coin at every step. For one seed the law is the one given its coins, and that is what
    lossless methods reproduce. Each choice of a request has coins of its own (`for_choice`).

    0 <= probability <= 1, 0 <= threshold <= 1; above 0.5 nothing can go.
    Reduces to: the identity at probability 0. Raises RequestError outside the ranges.
    Source: p-e-w, "Exclude Top Choices (XTC)", text-generation-webui pull request 6335, 2024.
    """

    probability: float
    threshold: float = 0.1
    seed: int = 0
    choice: int = 0
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("xtc_probability", self.probability, Chance)
        convert_annotated_value("xtc_threshold", self.threshold, Threshold)

    def start_state(self, prompt: Sequence[int]) -> int:
        return len(prompt)

    def next_state(self, state: int, token: int) -> int:
        """Advance the position by one token.

        Args:
            state: Tokens of prompt and answer so far.
            token: Token id that follows; not read.

        Returns:
            The position behind it.
        """
        return state + 1

    def for_choice(self, choice: int) -> XtcRule:
        """The same rule with the coins of another choice of the request; states of one serve the
        other.
        """
        return replace(self, choice=choice)

    def shape_law(self, state: int, logw_V: Tensor) -> Tensor:
        """Toss the coin of this position; where it falls so, remove the likely tokens but one.

        Args:
            state: Tokens of prompt and answer so far; they name the coin.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``; the row itself where nothing is removed.
        """
        # The coin depends on the position and on nothing else, so that drafter and verifier see one
        # law.
        if (
            not Rng.of_choice(self.seed, self.choice)
            .child_stream("xtc", state)
            .draw_bernoulli(self.probability)
        ):
            return logw_V
        # A threshold of 0 takes every token for likely.
        if self.threshold:
            log_t = math.log(self.threshold)
        else:
            log_t = NEG_INF
        # p >= threshold, without normalising the row.
        choices = (logw_V >= logw_V.logsumexp(-1) + log_t).nonzero()[:, 0]
        w = logw_V[choices]
        # Tokens that another rule has banned are no choice.
        choices = choices[w > NEG_INF]
        w = w[w > NEG_INF]
        # One likely token alone stays: there is no less likely one to fall back on.
        if len(choices) < 2:
            return logw_V
        out_V = logw_V.clone()
        # Of the likely tokens those go that are likelier than the least likely one.
        out_V[choices[w > w.min()]] = NEG_INF
        return out_V


def make_xtc_rule(
    setting: SamplingRuleContext, *, xtc_probability: Chance = 0.0, xtc_threshold: Threshold = 0.1
) -> XtcRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request: its seed and choice name the
            coins.
        xtc_probability: Probability that a position removes its likely tokens, 0 to 1; 0 turns the
            rule off. Default 0.
        xtc_threshold: Probability from which a token counts as likely, 0 to 1. Default 0.1.

    Returns:
        The rule, or None where it is off or the threshold is above 0.5.
    """
    # Two tokens cannot both have more than half of the mass.
    acts = xtc_probability and xtc_threshold <= 0.5
    if acts:
        return XtcRule(xtc_probability, xtc_threshold, setting.seed, setting.choice)
    return None


RULE = SamplingRule("xtc", make_xtc_rule, {"transformers": 180, "vllm": 180, "llamacpp": 170})
