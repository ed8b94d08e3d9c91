"""Whether a target should write a step that a draft model has written: by a router, a reward, both rewards, or at random."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.rng import Rng
from polydec.methods.search.loop.protocols import ArbiterCase, ProcessReward


@dataclass(frozen=True)
class RouterArbiter:
    """Where a router expects the target to do better by at least `tau`, from the draft model's own state behind its step. The
    target is not asked.

    router: trained on the draft model's states; tau: 0 takes none of the draft model's steps, above 1 all.
    Source: "Arbitrage" (2025); there the router is a language model of its own that reads the text (ByReading).
    """

    router: ProcessReward
    tau: float = 0.5

    async def prefers(self, case: ArbiterCase, rng: Rng) -> bool:
        return await case.drafted(self.router) >= self.tau


@dataclass(frozen=True)
class ReadingArbiter:
    """The same by a router that is a language model of its own: it reads the problem and all steps, each behind a mark of who
    wrote it. Neither model is asked.

    router: trained on that model's states; tau: as above.
    Source: "Arbitrage" (2025).
    """

    router: ProcessReward
    tau: float = 0.5

    async def prefers(self, case: ArbiterCase, rng: Rng) -> bool:
        return await case.told(self.router) >= self.tau


@dataclass(frozen=True)
class ValueArbiter:
    """Where the step is worth less than `tau` by a reward on the target's states; the target reads every step.

    reward: a process reward model; tau: 0 takes every step of the draft model's, above 1 none.
    Source: Liao et al., "Reward-guided speculative decoding for efficient LLM reasoning" (2025).
    """

    reward: ProcessReward
    tau: float = 0.7

    async def prefers(self, case: ArbiterCase, rng: Rng) -> bool:
        return await case.read(self.reward) < self.tau


@dataclass(frozen=True)
class AdvantageArbiter:
    """Where the target's own step is worth more than the draft model's by over `tau`. Both are written and judged, so it saves
    nothing: it is what a router is taught by, and may reach at best.

    reward: a process reward model; tau: -1 to 1; ties go to the draft model.
    Source: "Arbitrage" (2025), its oracle.
    """

    reward: ProcessReward
    tau: float = 0.0

    async def prefers(self, case: ArbiterCase, rng: Rng) -> bool:
        drafted = await case.read(self.reward)
        return await case.written(self.reward) - drafted > self.tau


@dataclass(frozen=True)
class ChanceArbiter:
    """At random, whatever the step is: what a rule that looks at it has to beat. share: of steps that the target writes."""

    share: float

    async def prefers(self, case: ArbiterCase, rng: Rng) -> bool:
        return bool(rng.bernoulli(self.share))
