"""Arbiters: whether a target should rewrite a step that a draft model has written.

They decide by a router, by a reward, by the rewards of both steps, or at random.
"""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.rng import Rng
from polydec.methods.search.loop.protocols import ArbiterCase, ProcessReward


@dataclass(frozen=True)
class RouterArbiter:
    """Calls the target where a router expects it to do better by at least `tau`.

    The router reads the draft model's own state after its step. The target is not asked.

    Attributes:
        router: Classifier that was trained on the draft model's states.
        tau: Threshold; 0 takes none of the draft model's steps, above 1 all.

    Source: "Arbitrage" (2025); there the router is a language model of its own that reads the text
    (`ReadingArbiter`).
    """

    router: ProcessReward
    tau: float = 0.5

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Compare the router's value of the drafted step with the threshold.

        Args:
            case: The drafted step; every look at it costs what it says.
            rng: Random stream of this step.

        Returns:
            True where the target's step should replace the drafted one.
        """
        # Cost: one row of the draft model. The target reads nothing for this decision.
        return await case.draft_step_value(self.router) >= self.tau


@dataclass(frozen=True)
class ReadingArbiter:
    """Calls the target where a router that is a language model of its own expects it to do better.

    That model reads the problem and all steps, each after a mark of who wrote it. Neither the draft
    model nor the target is asked.

    Attributes:
        router: Classifier that was trained on that model's states.
        tau: Threshold; 0 takes none of the draft model's steps, above 1 all.

    Source: "Arbitrage" (2025).
    """

    router: ProcessReward
    tau: float = 0.5

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Compare the reader's value of the drafted step with the threshold.

        Args:
            case: The drafted step; every look at it costs what it says.
            rng: Random stream of this step.

        Returns:
            True where the target's step should replace the drafted one.
        """
        # Cost: a pass of the reader over what it has not read. Neither model runs for it.
        return await case.reader_value(self.router) >= self.tau


@dataclass(frozen=True)
class ValueArbiter:
    """Calls the target where the drafted step is worth less than `tau`.

    A reward on the target's states judges it; so the target reads every step.

    Attributes:
        reward: A process reward model.
        tau: Threshold; 0 takes every step of the draft model's, above 1 none.

    Source: Liao et al., "Reward-guided speculative decoding for efficient LLM reasoning" (2025).
    """

    reward: ProcessReward
    tau: float = 0.7

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Compare the reward of the drafted step with the threshold.

        Args:
            case: The drafted step; every look at it costs what it says.
            rng: Random stream of this step.

        Returns:
            True where the target's step should replace the drafted one.
        """
        # Cost: a pass of the target over the drafted step, whose cache it keeps if the step stands.
        return await case.target_reading_value(self.reward) < self.tau


@dataclass(frozen=True)
class AdvantageArbiter:
    """Calls the target where its own step is worth more than the drafted one by over `tau`.

    Both are written and judged, so it saves nothing: it is what a router learns from, and an upper
    bound of what a router may reach.

    Attributes:
        reward: A process reward model.
        tau: Threshold, -1 to 1; ties go to the draft model.

    Source: "Arbitrage" (2025), its oracle.
    """

    reward: ProcessReward
    tau: float = 0.0

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Write and judge both steps, and compare their rewards.

        Args:
            case: The drafted step; every look at it costs what it says.
            rng: Random stream of this step.

        Returns:
            True where the target's step should replace the drafted one.
        """
        # Cost: the target reads the drafted step, and writes one of its own.
        drafted = await case.target_reading_value(self.reward)
        return await case.target_step_value(self.reward) - drafted > self.tau


@dataclass(frozen=True)
class ChanceArbiter:
    """Calls the target at random, whatever the step is: the baseline of rules that look at it.

    Attributes:
        share: Share of the steps that the target writes, 0 to 1.
    """

    share: float

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Draw whether the target writes the step.

        Args:
            case: The drafted step; every look at it costs what it says.
            rng: Random stream of this step.

        Returns:
            True where the target's step should replace the drafted one.
        """
        return bool(rng.draw_bernoulli(self.share))
