"""The next token under several choices of experts: what a mixture says of it on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import float64_probabilities
from polydec.core.protocols import Target
from polydec.core.rng import Rng
from polydec.methods.search.loop.attempt import SearchAttempt, one_token_round
from polydec.methods.speculative.loop.walk import WalkRound

Routing = tuple[tuple[float, ...], ...]
"""What is added to the router's scores, [layers][experts]: see Want.routing."""


@dataclass(frozen=True)
class ExpertRefinement:
    """An unsure token is drawn from the mean of `ways` laws: the router's own, and others with Gumbel noise on the scores by
    which it chooses experts. What stands in the cache is what the router's own choice wrote, and log-probabilities are those
    of its law.

    routes: layers and experts of the target; ways: at least 2; stir: of the noise, in standard deviations of a row's scores, 0
    or more; above: nats, of the entropy of laws that are refined.

    Exact: approximate: the mean is another law.
    Reduces to: the router's own law at stir 0.
    Source: Qiu et al., HyPER (2026), SingleToken; noise, threshold and mean are ours.
    """

    routes: tuple[int, int]
    ways: int = 4
    stir: float = 0.2
    above: float = 1.0

    def __post_init__(self) -> None:
        if not self.ways >= 2:
            raise RequestError(f"ways is {self.ways}: it must be at least 2")
        for name, value in (("stir", self.stir), ("above", self.above)):
            if not value >= 0.0:
                raise RequestError(f"{name} is {value}: it must be at least 0")

    @staticmethod
    def of(target: Target, ways: int, stir: float, above: float) -> ExpertRefinement | None:
        """None where the target is no mixture whose router can be moved, or one way is asked for."""
        routes: tuple[int, int] | None = getattr(target, "routes", None)
        if routes is None or ways < 2:
            return None
        return ExpertRefinement(routes, ways, stir, above)

    def routings(self, rng: Rng, position: int) -> list[Routing]:
        """Those besides the router's own for the token at a position, each drawn in a stream of its own."""
        layers, experts = self.routes
        out = list[Routing]()
        for way in range(1, self.ways):
            noise_V = rng.at("routing", position, way).noise(layers * experts).gumbel_V
            by_LE = (self.stir * noise_V).view(layers, experts)
            out.append(tuple(tuple(map(float, by_E)) for by_E in by_LE))
        return out

    async def refined(self, attempt: SearchAttempt, r: WalkRound, rng: Rng) -> WalkRound:
        """The round of one token (the draft is its root alone) with the token drawn anew, from the mean."""
        others = await attempt.rerouted(self.routings(rng, r.position))
        p_V = mean_law(
            [float64_probabilities(r.scores.row(0)), *map(float64_probabilities, others)]
        )
        return one_token_round(r, rng.at("token", r.position).categorical(p_V))


def mean_law(laws: Sequence[Tensor]) -> Tensor:
    """Of probabilities, token by token."""
    return torch.stack(list(laws)).mean(0)
