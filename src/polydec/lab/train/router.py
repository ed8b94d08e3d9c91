"""`polydec train router`: after which of a draft model's steps a target would have written a better one."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.lab.train import problems
from polydec.lab.train.auc import roc_auc
from polydec.lab.train.dice import generator_for
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.prm import TrainableStepReward
from polydec.lab.train.progress import show_count_progress
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.solutions import LONGEST
from polydec.lab.train.specs.router import RouterSpec
from polydec.lab.train.target import load_autoregressive_model
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.arbiters import AdvantageArbiter
from polydec.methods.search.loop.arbitrage import ArbitrageSearch
from polydec.methods.search.loop.protocols import ArbiterCase
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.formats import edge, fields, zoo
from polydec.models.formats.tensor_files import SafeTensors
from polydec.models.learned.kinds import router, step_reward
from polydec.models.learned.kinds.router import DraftStateRouter
from polydec.models.learned.kinds.step_reward import StepReward
from polydec.models.sessions.checkpoint import ModelBundle

LIVE = 64
"""Problems that are solved side by side."""


@dataclass(frozen=True, eq=False)
class RouterExamples:
    """Steps of the draft model's: its state behind each (N, H), what the reward says of it (N) and how much more of the
    target's (N, -1 to 1)."""

    state_NH: Tensor
    value_N: Tensor
    advantage_N: Tensor

    @property
    def better_N(self) -> Tensor:
        """1 where the target's step is the better one, else 0."""
        return (self.advantage_N > 0).float()

    def part(self, picked: Tensor | slice) -> RouterExamples:
        return RouterExamples(self.state_NH[picked], self.value_N[picked], self.advantage_N[picked])


@dataclass(eq=False)
class _RecordingReward:
    """A reward that notes what it is asked of, and what it said."""

    reward: StepReward | None
    state: list[Tensor] = field(default_factory=list[Tensor])
    chances: list[float] = field(default_factory=list[float])

    def chance(self, hidden_H: Tensor) -> float:
        self.state.append(hidden_H)
        self.chances.append(0.0 if self.reward is None else self.reward.chance(hidden_H))
        return self.chances[-1]


@dataclass(frozen=True, eq=False)
class _RecordingOracle:
    """The oracle; the states of the draft model and both values are noted as it goes."""

    small: _RecordingReward
    big: _RecordingReward

    async def prefers(self, case: ArbiterCase, rng: Rng) -> bool:
        await case.drafted(self.small)
        return await AdvantageArbiter(self.big).prefers(case, rng)


def train_router(spec: RouterSpec) -> dict[str, Any]:
    """Train, save at spec.out (router.safetensors, config.json), and say how it does on held-out problems. Both models write
    every step of training problems, the reward judges both, and the better one stands. What was learned from is kept in out.
    Every eighth step is set aside; the weights that are best there are saved. See `carry_out`. Raises RequestError on a wrong
    spec, or models that do not fit."""
    return run_training("router", spec, _course)


def _course(spec: RouterSpec) -> TrainingRun:
    out = Path(spec.out)
    target = load_autoregressive_model(spec.target)
    draft = load_autoregressive_model(spec.draft, "draft")
    reward = step_reward.load(
        zoo.zoo_model_path(spec.reward) if spec.reward.startswith("zoo:") else spec.reward
    )
    reward.fit(target.lm, None)
    target.lm.vocab.require_same(draft.lm.vocab, "the draft")
    out.mkdir(parents=True, exist_ok=True)
    known_as = run_identity(spec, kinds=list(spec.kinds))
    whole, unseen = (
        _kept(spec, out, known_as, target, draft, reward, unseen) for unseen in (False, True)
    )
    last = torch.arange(len(whole.value_N)) % 8 == 0
    lessons, aside = whole.part(~last), whole.part(last)
    head = TrainableStepReward(
        step_reward.new_step_reward(whole.state_NH.shape[1], spec.inner, draft.lm.vocab, spec.seed)
    )

    def loss_of(part: RouterExamples) -> Tensor:
        return binary_cross_entropy_with_logits(head.reward().logit(part.state_NH), part.better_N)

    def loss(step: int) -> tuple[Tensor, int]:
        g = generator_for(spec.seed, step, "rows")
        return loss_of(
            lessons.part(torch.randint(len(lessons.value_N), (spec.rows,), generator=g))
        ), spec.rows

    def measure() -> dict[str, Any]:
        return {
            "steps_seen": len(whole.value_N),
            "loss_aside": float(loss_of(aside).detach()),
            "held_out": measure_router(DraftStateRouter(head.reward()), unseen),
        }

    def save(out: Path, result: Mapping[str, Any]) -> None:
        about = {"target": spec.target, "draft": spec.draft, "temperature": spec.temperature}
        router.save(out, DraftStateRouter(head.reward()), about)

    schedule = TrainingSchedule(
        spec.steps,
        spec.rate,
        decay=1.0,
        save_every=50,
        log_every=min(50, spec.steps),
        judge_every=25,
    )
    return TrainingRun(head, loss, schedule, known_as, save, measure, lambda: loss_of(aside))


def _kept(
    spec: RouterSpec,
    out: Path,
    known_as: Mapping[str, Any],
    target: ModelBundle,
    draft: ModelBundle,
    reward: StepReward,
    unseen: bool,
) -> RouterExamples:
    """As `gather` makes them, kept in out. Raises RequestError where others lie there."""
    file = out / ("held.safetensors" if unseen else "lessons.safetensors")
    about = out / "lessons.json"
    asked = json.dumps(
        {
            k: known_as[k]
            for k in ("target", "draft", "reward", "kinds", "each", "temperature", "seed")
        }
    )
    if file.exists():
        if not about.exists() or read_bytes(about) != asked.encode():
            raise RequestError(
                f"out is {str(out)!r}: what lies there was gathered for another training"
            )
        return _read(file)
    made = gather_router_examples(spec, target, draft, reward, unseen)
    replace_file_atomically(about, lambda at: Path(at).write_text(asked))
    replace_file_atomically(
        file,
        lambda at: save_file(
            {"state": made.state_NH, "value": made.value_N, "advantage": made.advantage_N}, at
        ),
    )
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


def gather_router_examples(
    spec: RouterSpec, target: ModelBundle, draft: ModelBundle, reward: StepReward, unseen: bool
) -> RouterExamples:
    """What both models write of `each` problems a kind, a quarter as many held-out ones."""
    if unseen:
        count = max(1, spec.each // 4)
    else:
        count = spec.each
    notes = list[tuple[_RecordingReward, _RecordingReward]]()
    asked = [
        problems.draw_problem(kind, spec.seed + 1, i, unseen)
        for i in range(count)
        for kind in spec.kinds
    ]
    shapers = build_shapers(Sampling(temperature=spec.temperature), eos=target.lm.vocab.eos)
    big, small = (
        SpeculativeDecoder(
            ShapedTarget(p.lm, *shapers), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
        )
        for p in (target, draft)
    )
    with show_count_progress(f"{'held-out ' * unseen}problems", every=LIVE) as watch:
        for first in range(0, len(asked), LIVE):
            tasks = list[Any]()
            for number, problem in enumerate(asked[first : first + LIVE], first):
                notes.append((_RecordingReward(None), _RecordingReward(reward)))
                ids = target.text.chat([{"role": "user", "content": problem.question}])
                decoder = ArbitrageSearch(big, small, _RecordingOracle(*notes[-1]))
                tasks.append(
                    answer_one(decoder, Request(ids, max_tokens=LONGEST, seed=spec.seed + number))
                )
            run_coroutines(tasks)
            watch(min(first + LIVE, len(asked)), len(asked))
    state_NH = torch.stack([h for small_, _ in notes for h in small_.state]).float()
    values = [
        v for _, big_ in notes for v in big_.chances
    ]  # of the draft model's step and of the target's, in turns
    value_N = torch.tensor(values[::2])
    own_N = torch.tensor(values[1::2])
    return RouterExamples(state_NH, value_N, own_N - value_N)


@torch.no_grad()
def measure_router(made: DraftStateRouter, lessons: RouterExamples) -> dict[str, Any]:
    """steps: how many; better: the share in which the target's step is; auc: how often, of such a step and another one, the
    router tells which is which; of_value: the same for what the reward says of the draft model's step (None where all are
    alike)."""
    better_N = lessons.better_N > 0

    return {
        "steps": len(better_N),
        "better": round(float(better_N.float().mean()), 4),
        "auc": roc_auc(made.head.logit(lessons.state_NH), better_N),
        "of_value": roc_auc(-lessons.value_N, better_N),
    }
