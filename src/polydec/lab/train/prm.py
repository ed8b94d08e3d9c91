"""`polydec train prm`: a process reward model on a reasoner's own states, from solutions that it drew and a checker judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from polydec.base.errors import RequestError
from polydec.lab.train.dice import generator_for
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.own_text import read_target_states
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.solutions import LabelledSolution, draw_solutions
from polydec.lab.train.specs.prm import PrmSpec
from polydec.lab.train.target import load_autoregressive_model
from polydec.models.learned.kinds import step_reward
from polydec.models.learned.kinds.step_reward import StepReward
from polydec.models.sessions.checkpoint import ModelBundle


@dataclass(frozen=True, eq=False)
class StepRewardExamples:
    """States behind steps (N, H), whether all was right there (N, 1 or 0), and of which kind of problem each is (N)."""

    state_NH: Tensor
    right_N: Tensor
    kind_N: tuple[str, ...]


class TrainableStepReward(nn.Module):
    """The weights of a StepReward, to be trained."""

    def __init__(self, start: StepReward) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(t.clone()) for t in (*start.inner, *start.out)])
        self._vocab = start.vocab

    def reward(self) -> StepReward:
        t: list[Tensor] = list(self.parts)
        return StepReward((t[0], t[1]), (t[2], t[3]), self._vocab)


def train_prm(spec: PrmSpec) -> dict[str, Any]:
    """Train, save at spec.out (prm.safetensors, config.json), and say how it does on held-out problems. The target draws
    solutions of training problems, and a checker labels every step: it is right so far and can still be finished, or not.
    Every eighth problem is set aside; the weights that are best there are saved. The target is left as it is. See
    `carry_out`. Raises RequestError on a wrong spec, or a target that shows no states."""
    return run_training("prm", spec, _course)


def _course(spec: PrmSpec) -> TrainingRun:
    out = Path(spec.out)
    point = load_autoregressive_model(spec.target)

    def solve(file: str, each: int, unseen: bool) -> list[LabelledSolution]:
        return draw_solutions(
            out / file,
            point,
            spec.kinds,
            each,
            temperature=spec.temperature,
            seed=spec.seed + 1,
            unseen=unseen,
        )

    drawn = solve("text.jsonl", spec.each, unseen=False)
    lessons, aside = (
        label_solution_steps(point, part)
        for part in ([d for i, d in enumerate(drawn) if i % 8], drawn[::8])
    )
    unseen = label_solution_steps(point, solve("held.jsonl", max(1, spec.each // 4), unseen=True))
    head = TrainableStepReward(
        step_reward.new_step_reward(
            lessons.state_NH.shape[1], spec.inner, point.lm.vocab, spec.seed
        )
    )

    def loss_of(part: StepRewardExamples, picked: Tensor | slice = slice(None)) -> Tensor:
        return binary_cross_entropy_with_logits(
            head.reward().logit(part.state_NH[picked]), part.right_N[picked]
        )

    def loss(step: int) -> tuple[Tensor, int]:
        g = generator_for(spec.seed, step, "rows")
        return loss_of(
            lessons, torch.randint(len(lessons.right_N), (spec.rows,), generator=g)
        ), spec.rows

    def measure() -> dict[str, Any]:
        return {
            "states": len(lessons.right_N),
            "loss_aside": float(loss_of(aside).detach()),
            "held_out": measure_step_reward(head.reward(), unseen),
        }

    def save(out: Path, result: Mapping[str, Any]) -> None:
        about = {"target": spec.target, "temperature": spec.temperature}
        step_reward.save(out, head.reward(), about)

    schedule = TrainingSchedule(
        spec.steps,
        spec.rate,
        decay=1.0,
        save_every=500,
        log_every=min(50, spec.steps),
        judge_every=25,
    )
    known_as = run_identity(spec, states=len(lessons.right_N))
    return TrainingRun(head, loss, schedule, known_as, save, measure, lambda: loss_of(aside))


def label_solution_steps(
    point: ModelBundle, drawn: Sequence[LabelledSolution]
) -> StepRewardExamples:
    """The states behind every line of these solutions, and whether all is right there. What was cut off in a line has none.

    Raises:
        RequestError: No solution has a line that ends, so there is nothing to learn from or to judge.
    """
    (line_break,) = point.text.encode("\n", special=False)
    closing = {line_break, *point.lm.vocab.eos}
    state = list[Tensor]()
    right = list[bool]()
    kind = list[str]()
    for d in drawn:
        ends = [i for i, x in enumerate(d.output_ids) if x in closing]
        behind_NH = read_target_states(point.lm, (*d.prompt_ids, *d.output_ids, line_break))[0][
            len(d.prompt_ids) :
        ]
        state += [behind_NH[i] for i in ends]
        right += [d.right[i] for i in ends]
        kind += [d.problem.kind] * len(ends)
    if not state:
        raise RequestError(
            f"none of {len(drawn)} solutions of the target has a line that ends: give more problems (each) or "
            "a target that solves them"
        )
    return StepRewardExamples(torch.stack(state), torch.tensor(right).float(), tuple(kind))


@torch.no_grad()
def measure_step_reward(reward: StepReward, lessons: StepRewardExamples) -> dict[str, Any]:
    """steps: how many; right: the share that is; told: how often a value above 1/2 says what is so; ranked: of each kind of
    problem how often, of a right and a wrong step of it, the right one is valued more (0.5 is chance; None where all are right
    or all are wrong). Over all kinds together it would mostly say that easy kinds are easy."""
    value_N = reward.logit(lessons.state_NH)
    right_N = lessons.right_N > 0.5

    def ranked(kind: str) -> float | None:
        own_N = torch.tensor([k == kind for k in lessons.kind_N])
        good = value_N[own_N & right_N]
        bad = value_N[own_N & ~right_N]
        if len(good) and len(bad):
            return float((good[:, None] > bad[None]).float().mean())
        return None

    return {
        "steps": len(right_N),
        "right": float(right_N.float().mean()),
        "told": float(((value_N > 0) == right_N).float().mean()),
        "ranked": {kind: ranked(kind) for kind in sorted(set(lessons.kind_N))},
    }
