"""A head on a draft model's states: after which of its steps would the target write a better one?

Both models write every step of training problems, a reward judges both, and the better one stands.
What was learned from is kept in the directory. Every eighth step is set aside; the weights that
are best there are saved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from polydec.base.edge import read_bytes
from polydec.base.errors import FileError, RequestError
from polydec.base.files import replace_file_atomically
from polydec.core.rng import Rng
from polydec.lab.train import problems
from polydec.lab.train.auc import roc_auc
from polydec.lab.train.probe import ProbeTraining
from polydec.lab.train.probes.prm import trainable_step_reward
from polydec.lab.train.problems import ReasoningProblem
from polydec.lab.train.specs.probe.router import RouterSpec
from polydec.lab.train.step_pairs import (
    StepModels,
    gathering_identity,
    load_step_models,
    problem_count,
    write_step_pairs,
)
from polydec.methods.search.loop.arbiters import AdvantageArbiter
from polydec.methods.search.loop.protocols import ArbiterCase
from polydec.models.formats import edge, fields
from polydec.models.formats.tensor_files import SafeTensors
from polydec.models.learned.kinds import router, step_reward
from polydec.models.learned.kinds.router import DraftStateRouter
from polydec.models.learned.kinds.step_reward import StepReward


@dataclass(frozen=True, eq=False)
class RouterExamples:
    """Steps of the draft model's.

    Attributes:
        state_NH: Its state behind each.
        value_N: What the reward says of it, 0 to 1.
        advantage_N: How much more it says of the target's step, -1 to 1.
    """

    state_NH: Tensor
    value_N: Tensor
    advantage_N: Tensor

    def __len__(self) -> int:
        return len(self.value_N)

    @property
    def better_N(self) -> Tensor:
        """1 where the target's step is the better one, else 0."""
        return (self.advantage_N > 0).float()

    def select_rows(self, picked: Tensor) -> RouterExamples:
        """The rows of these numbers, or those for which a mask holds."""
        return RouterExamples(self.state_NH[picked], self.value_N[picked], self.advantage_N[picked])


@dataclass(eq=False)
class _RecordingReward:
    """A reward that notes what it is asked of, and what it said."""

    reward: StepReward | None
    state: list[Tensor] = field(default_factory=list[Tensor])
    chances: list[float] = field(default_factory=list[float])

    def success_chance(self, hidden_H: Tensor) -> float:
        # Without a reward only the states are wanted.
        self.state.append(hidden_H)
        self.chances.append(0.0 if self.reward is None else self.reward.success_chance(hidden_H))
        return self.chances[-1]


@dataclass(frozen=True, eq=False)
class _RecordingOracle:
    """The oracle; the states of the draft model and both values are noted as it goes."""

    small: _RecordingReward
    big: _RecordingReward

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Decide for the step of the higher reward, after the draft model's state was noted.

        Args:
            case: The step of the draft model's and what stands before it.
            rng: Random stream of the answer.

        Returns:
            Whether the target's step stands.
        """
        await case.draft_step_value(self.small)
        return await AdvantageArbiter(self.big).prefers_target(case, rng)


def prepare_probe(spec: RouterSpec) -> ProbeTraining[RouterExamples]:
    """Gather steps that both models wrote, or read those that are kept."""
    out = Path(spec.out)
    models = load_step_models(spec)
    out.mkdir(parents=True, exist_ok=True)
    every = _kept(spec, models, False)
    unseen = _kept(spec, models, True)
    # Steps of one problem stand together, so every eighth step sets aside some of most problems.
    last = torch.arange(len(every)) % 8 == 0
    aside = every.select_rows(last)
    width = every.state_NH.shape[1]
    head = trainable_step_reward(
        step_reward.new_step_reward(width, spec.inner, models.draft.lm.vocab, spec.seed)
    )

    def part_loss(part: RouterExamples) -> Tensor:
        return binary_cross_entropy_with_logits(
            head.current_probe().step_logits(part.state_NH), part.better_N
        )

    about = {"target": spec.target, "draft": spec.draft, "temperature": spec.temperature}
    return ProbeTraining(
        head,
        every.select_rows(~last),
        part_loss,
        lambda: {
            "steps_seen": len(every),
            "loss_aside": float(part_loss(aside)),
            "held_out": measure_router(DraftStateRouter(head.current_probe()), unseen),
        },
        lambda out, result: router.save(out, DraftStateRouter(head.current_probe()), about),
        lambda: part_loss(aside),
    )


def _kept(spec: RouterSpec, models: StepModels, unseen: bool) -> RouterExamples:
    """As `gather_router_examples` makes them, kept in out.

    Raises:
        RequestError: Those of another training lie there.
    """
    out = Path(spec.out)
    file = out / ("held.safetensors" if unseen else "lessons.safetensors")
    # Written beside the lessons, to see whether they belong to this spec.
    about = out / "lessons.json"
    asked = json.dumps(gathering_identity(spec))
    if file.exists():
        if not about.exists() or read_bytes(about) != asked.encode():
            raise RequestError(
                f"out is {str(out)!r}: what lies there was gathered for another training"
            )
        return _read(file)
    made = gather_router_examples(spec, models, unseen)
    tensors = {"state": made.state_NH, "value": made.value_N, "advantage": made.advantage_N}
    # The description first: lessons without one would be refused.
    replace_file_atomically(about, lambda at: Path(at).write_text(asked))
    replace_file_atomically(file, lambda at: save_file(tensors, at))
    return made


def _read(file: Path) -> RouterExamples:
    """What was gathered. Raises FileError with one sentence where the file is damaged."""
    with edge.report_read_errors(f"file {str(file)!r} is damaged (delete it to gather anew)"):
        tensors = SafeTensors([file])
        shape = fields.shape_of(tensors, "state")
        count = {"value": shape[:1], "advantage": shape[:1]}
        fields.require_shapes(tensors, count)
        if len(shape) != 2 or not all(tensors[x].isfinite().all() for x in ("state", *count)):
            raise FileError("its tensors are not rows of finite numbers")
        return RouterExamples(*(tensors[x].float() for x in ("state", "value", "advantage")))


def gather_router_examples(spec: RouterSpec, models: StepModels, unseen: bool) -> RouterExamples:
    """Let both models write, and keep the draft model's states and the values of both steps.

    Args:
        spec: Names the problems and the randomness.
        models: The two models and the reward.
        unseen: Of held-out problems, a quarter as many.

    Returns:
        Every step that the draft model wrote.
    """
    notes = list[tuple[_RecordingReward, _RecordingReward]]()
    asked = [
        problems.draw_problem(kind, spec.seed + 1, i, unseen)
        for i in range(problem_count(spec, unseen))
        for kind in spec.kinds
    ]

    def oracle_for(
        number: int, problem: ReasoningProblem, ids: tuple[int, ...]
    ) -> _RecordingOracle:
        """Make the oracle of a problem, whose notes are kept.

        Args:
            number: Number of the problem; not needed.
            problem: The problem; not needed.
            ids: Its prompt; not needed.

        Returns:
            The oracle.
        """
        notes.append((_RecordingReward(None), _RecordingReward(models.reward)))
        return _RecordingOracle(*notes[-1])

    write_step_pairs(spec, models, list(enumerate(asked)), oracle_for, unseen)
    state_NH = torch.stack([h for small, _ in notes for h in small.state]).float()
    # The reward is asked of the draft model's step and of the target's in turns.
    values = [v for _, big in notes for v in big.chances]
    value_N = torch.tensor(values[::2])
    own_N = torch.tensor(values[1::2])
    return RouterExamples(state_NH, value_N, own_N - value_N)


@torch.no_grad()
def measure_router(made: DraftStateRouter, lessons: RouterExamples) -> dict[str, Any]:
    """Say how well a router ranks steps.

    Args:
        made: The router.
        lessons: Steps of held-out problems.

    Returns:
        steps: how many; better: the share in which the target's step is; auc: how often, of such a
        step and another one, the router tells which is which; of_value: the same for what the
        reward says of the draft model's step (None where all are alike).
    """
    better_N = lessons.better_N > 0

    return {
        "steps": len(better_N),
        "better": round(float(better_N.float().mean()), 4),
        "auc": roc_auc(made.head.step_logits(lessons.state_NH), better_N),
        "of_value": roc_auc(-lessons.value_N, better_N),
    }
