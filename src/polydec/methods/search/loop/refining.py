"""Draw a token from the mean of several expert choices of a mixture of experts."""

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
"""What is added to the router's scores, [layers][experts]: see ScoreRequest.routing."""


@dataclass(frozen=True)
class ExpertRefinement:
    """Draws an unsure token from the mean of `ways` laws.

    These are the router's own law, and others with Gumbel noise on the scores by which it chooses
    experts. What stands in the cache is what the router's own choice wrote, and log-probabilities
    are those of its law.

    Attributes:
        routes: Layers and experts of the target.
        ways: Laws that are averaged, at least 2.
        stir: Size of the noise, in standard deviations of a row's scores, 0 or more.
        above: Entropy in nats above which a law is refined, 0 or more.

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
    def of_target(target: Target, ways: int, stir: float, above: float) -> ExpertRefinement | None:
        """Return the refinement for a target.

        Args:
            target: The model.
            ways: Laws that are averaged.
            stir: Size of the noise, in standard deviations of a row's scores.
            above: Entropy in nats above which a law is refined.

        Returns:
            None where the target is no mixture whose router can be moved, or one way is asked for.
        """
        routes: tuple[int, int] | None = getattr(target, "routes", None)
        # One way is the router's own law: nothing would be averaged.
        if routes is None or ways < 2:
            return None
        return ExpertRefinement(routes, ways, stir, above)

    def draw_routings(self, rng: Rng, position: int) -> list[Routing]:
        """Draw the routings besides the router's own, each in a stream of its own.

        Args:
            rng: Random stream of the text.
            position: Position of the token.

        Returns:
            What is added to the router's scores, ``[layers][experts]``, for each of ``ways - 1``
            laws.
        """
        layers, experts = self.routes
        out = list[Routing]()
        for way in range(1, self.ways):
            # Named by position and way: the noise does not depend on what else was drawn.
            noise_V = (
                rng.child_stream("routing", position, way).gumbel_noise(layers * experts).gumbel_V
            )
            by_LE = (self.stir * noise_V).view(layers, experts)
            out.append(tuple(tuple(map(float, by_E)) for by_E in by_LE))
        return out

    async def refined_token(self, attempt: SearchAttempt, r: WalkRound, rng: Rng) -> WalkRound:
        """Draw a round's token anew, from the mean law.

        Args:
            attempt: The text.
            r: Round of one token, whose draft is its root alone.
            rng: Random stream of the text.
        """
        others = await attempt.rerouted_logprobs(self.draw_routings(rng, r.position))
        # The mean of probabilities, not of logits: a mixture of the ways.
        p_V = mean_law(
            [float64_probabilities(r.scores.logprob_row(0)), *map(float64_probabilities, others)]
        )
        return one_token_round(r, rng.child_stream("token", r.position).draw_categorical(p_V))


def mean_law(laws: Sequence[Tensor]) -> Tensor:
    """Return the mean of probabilities, token by token, shape ``[V]``."""
    return torch.stack(list(laws)).mean(0)
