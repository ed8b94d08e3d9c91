"""Steps that a target and a draft model write of the same problems: what routers learn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.problems import ReasoningProblem
from polydec.lab.train.progress import show_count_progress
from polydec.lab.train.solutions import LONGEST
from polydec.lab.train.specs.probe.router import RouterSpec
from polydec.lab.train.specs.probe.text_router import TextRouterSpec
from polydec.lab.train.target import load_autoregressive_model
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.arbitrage import ArbitrageSearch
from polydec.methods.search.loop.protocols import StepArbiter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.formats import zoo
from polydec.models.learned.kinds import step_reward
from polydec.models.learned.kinds.step_reward import StepReward
from polydec.models.sessions.checkpoint import ModelBundle

LIVE = 64
"""Problems that are solved side by side."""

StepPairSpec = RouterSpec | TextRouterSpec


@dataclass(frozen=True, eq=False)
class StepModels:
    """Who writes and who judges steps.

    Attributes:
        target: The large model.
        draft: The small model, which writes each step first.
        reward: A process reward model on the target's states; None: a checker judges.
    """

    target: ModelBundle
    draft: ModelBundle
    reward: StepReward | None


def load_step_models(spec: StepPairSpec) -> StepModels:
    """Load what a spec names.

    Raises:
        RequestError: The models do not write the same tokens.
        FileError: The reward is of another target.
    """
    target = load_autoregressive_model(spec.target)
    draft = load_autoregressive_model(spec.draft, "draft")
    target.lm.vocab.require_same(draft.lm.vocab, "the draft")
    reward = None
    if spec.reward is not None:
        name = spec.reward
        reward = step_reward.load(zoo.zoo_model_path(name) if name.startswith("zoo:") else name)
        reward.check_fit(target.lm, None)
    return StepModels(target, draft, reward)


def gathering_identity(spec: StepPairSpec) -> dict[str, Any]:
    """The fields of a spec that decide which steps are written."""
    names = ("target", "draft", "reward", "kinds", "each", "temperature", "seed")
    return {name: getattr(spec, name) for name in names}


def problem_count(spec: StepPairSpec, unseen: bool) -> int:
    """Count the problems of each kind.

    Args:
        spec: Says how many both models solve.
        unseen: Of held-out problems, a quarter as many.

    Returns:
        At least 1.
    """
    if unseen:
        return max(1, spec.each // 4)
    return spec.each


def write_step_pairs(
    spec: StepPairSpec,
    models: StepModels,
    numbered: Sequence[tuple[int, ReasoningProblem]],
    oracle_for: Callable[[int, ReasoningProblem, tuple[int, ...]], StepArbiter],
    unseen: bool,
) -> None:
    """Let both models write every step of problems; the one that an oracle prefers stands.

    Args:
        spec: Names the temperature and the randomness.
        models: The two models.
        numbered: Problems, each with the number that names its draws.
        oracle_for: Makes the oracle of a problem, of its number, itself and its prompt.
        unseen: Whether the problems are held out; the progress says so.
    """
    eos = models.target.lm.vocab.eos
    shapers = build_shapers(Sampling(temperature=spec.temperature), eos=eos)
    big, small = (
        SpeculativeDecoder(
            ShapedTarget(p.lm, *shapers), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
        )
        for p in (models.target, models.draft)
    )
    # Problems that are live together share passes of each model.
    with show_count_progress(f"{'held-out ' * unseen}problems", every=LIVE) as watch:
        for first in range(0, len(numbered), LIVE):
            tasks = list[Any]()
            for number, problem in numbered[first : first + LIVE]:
                ids = models.target.text.chat_prompt(
                    [{"role": "user", "content": problem.question}]
                )
                search = ArbitrageSearch(big, small, oracle_for(number, problem, ids))
                request = Request(ids, max_tokens=LONGEST, seed=spec.seed + number)
                tasks.append(answer_one(search, request))
            run_coroutines(tasks)
            watch(min(first + LIVE, len(numbered)), len(numbered))
