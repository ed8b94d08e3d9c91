"""Top-W: keep the tokens that stand for the whole law, where tokens that mean nearly the same count as near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import AtLeast, InRange, ValueNote, convert_annotated_value
from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.types import RowDetail
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext
from polydec.models.sessions.geometry import EmbeddingGeometry

FIRST, ROUNDS = (
    0.999,
    9,
)  # mass of the pool that the first set holds; how often the set is found anew at most

Mass = Annotated[
    float,
    InRange(0, 100),
    ValueNote("0 keeps every token, 2.8 is published"),
    "Top-W: what the logarithm of the kept mass is worth",
]
Entropy = Annotated[float, InRange(0, 100), "Top-W: what the entropy of the kept tokens costs"]
Scale = Annotated[
    float,
    InRange(0, 100),
    ValueNote("0 looks at probabilities only"),
    "Top-W: what the way from a token to the nearest kept one costs",
]
Pool = Annotated[int, AtLeast(1), "Top-W: how many of the likeliest tokens may stay"]


@dataclass(frozen=True)
class TopWRule:
    """Keeps the set S that minimises g W(p, S) + entropy H(p | S) - mass log p(S), W being the
    mean distance of a token to the nearest one in S, and a distance 1 - the cosine of two
    standardised embeddings. With W's potential f held fixed the best set is a prefix of the tokens
    in descending order of g f + entropy log p, which one scan finds; then f is that of the new set,
    until nothing changes (9 times at most).

    mass: beta, 0 to 100; entropy: lambda, 0 to 100 (at or above beta one token is left); scale: g,
    0 to 100; pool: how many of the likeliest tokens may stay; geometry: of the target's embeddings,
    None where nobody gave it (`shape_law` needs it). Equals count in the order of their ids. The
    likeliest token always stays.

    Reduces to: a set of the likeliest tokens at scale 0; the likeliest alone where mass <= entropy.
    Raises RequestError outside the ranges.
    Source: "Top-W: geometry-aware decoding with Wasserstein-regularized truncation and mass
    penalties", 2026.
    """

    mass: float
    entropy: float = 2.2
    scale: float = 0.6
    pool: int = 1200
    geometry: EmbeddingGeometry | None = None
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_annotated_value("top_w", self.mass, Mass)
        convert_annotated_value("top_w_entropy", self.entropy, Entropy)
        convert_annotated_value("top_w_scale", self.scale, Scale)
        convert_annotated_value("top_w_pool", self.pool, Pool)

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
        """Cut off every token outside the set that the rule finds.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        token_M = self._pooled(logw_V)
        # Of the complete law: the pool need not add up to 1.
        logp_M = normalise_log_weights(logw_V.double())[token_M]
        kept_M = self._kept(logp_M, self._directions(token_M.tolist()))
        out_V = torch.full_like(logw_V, NEG_INF)
        out_V[token_M[kept_M]] = logw_V[token_M[kept_M]]
        return out_V

    def _pooled(self, logw_V: Tensor) -> Tensor:
        """The likeliest tokens that have any weight, in descending order, equals by their ids."""
        size = min(self.pool, len(logw_V))
        # topk breaks ties in no fixed order, so the edge alone is taken from it, and equals are
        # sorted by id.
        edge = logw_V.topk(size).values[-1]
        token_N = ((logw_V >= edge) & (logw_V > NEG_INF)).nonzero()[:, 0]
        return token_N[logw_V[token_N].sort(descending=True, stable=True).indices][:size]

    def _directions(self, tokens: Sequence[int]) -> Tensor:
        if self.geometry is None:
            raise RequestError(NO_TABLE)
        return self.geometry.unit_vectors(tokens)

    def _kept(self, logp_M: Tensor, where_MH: Tensor) -> Tensor:
        """Which of the pool stay."""
        p_M, prior_M = (
            logp_M.exp(),
            self.entropy * logp_M.clamp(min=-27.631),
        )  # the logarithm of 1e-12
        # The first set: the likeliest tokens that have 99.9 % of the mass of the pool together.
        kept_M = p_M.cumsum(0) - p_M < FIRST * p_M.sum()
        for _ in range(ROUNDS):
            # How far each token of the pool lies from the nearest one that stays; the potential f
            # is minus this distance.
            far_M = torch.zeros_like(p_M)
            if self.scale and not kept_M.all():
                far_M[~kept_M] = 1.0 - (where_MH[~kept_M] @ where_MH[kept_M].T).amax(1)
            # g f + entropy log p: the best set is a prefix of the tokens in descending order of
            # this.
            worth_M = prior_M - self.scale * far_M
            order_M = worth_M.sort(descending=True, stable=True).indices
            # For every prefix S: sum over S of p (entropy log p + g f) / p(S) + (mass - entropy)
            # log p(S), which is the objective with its sign turned.
            mass_M = p_M[order_M].cumsum(0)
            score_M = (p_M * worth_M)[order_M].cumsum(0) / mass_M + (
                self.mass - self.entropy
            ) * mass_M.log()
            best_M = torch.zeros_like(kept_M)
            best_M[order_M[: int(score_M.argmax()) + 1]] = True
            # A set that finds itself again is a fixed point.
            if torch.equal(best_M, kept_M):
                break
            kept_M = best_M
        return kept_M


NO_TABLE = "top_w needs the target's table of embeddings: this target has none, so leave top_w out"


def has_table(shaper: TopWRule, setting: SamplingRuleContext) -> None:
    """Check that the target has a table of embeddings.

    Args:
        shaper: The rule; not read.
        setting: What is known of the target: its geometry is read.

    Raises:
        RequestError: There is no table.
    """
    try:
        if setting.geometry is not None:
            setting.geometry.unit_vectors((0,))
            return
    except (PolydecError, NotImplementedError):
        pass
    raise RequestError(NO_TABLE)


def make_top_w_rule(
    setting: SamplingRuleContext,
    *,
    top_w: Mass = 0.0,
    top_w_entropy: Entropy = 2.2,
    top_w_scale: Scale = 0.6,
    top_w_pool: Pool = 1200,
) -> TopWRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request: its geometry is read.
        top_w: What the logarithm of the mass that stays is worth (beta), 0 to 100; 0 turns the rule
            off. Default 0.
        top_w_entropy: What the entropy of the tokens that stay costs (lambda), 0 to 100. Default
            2.2.
        top_w_scale: What the distance from a token to the nearest one that stays costs (g), 0 to
            100. Default 0.6.
        top_w_pool: How many of the likeliest tokens may stay, at least 1. Default 1,200.

    Returns:
        The rule, or None where it is off.
    """
    if top_w:
        return TopWRule(top_w, top_w_entropy, top_w_scale, top_w_pool, setting.geometry)
    return None


RULE = SamplingRule(
    "top_w", make_top_w_rule, {"transformers": 135, "vllm": 135, "llamacpp": 145}, check=has_table
)
