"""A process reward model on a reasoner's own states: is all right, and can it still be finished?

The reasoner draws solutions of training problems, and a checker labels every step of them. Every
eighth problem is set aside; the weights that are best there are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from polydec.base.errors import RequestError
from polydec.lab.train import problems
from polydec.lab.train.own_text import read_target_states
from polydec.lab.train.probe import ProbeExamples, ProbeTraining, TrainableProbe
from polydec.lab.train.solutions import LabelledSolution, draw_solutions
from polydec.lab.train.specs.probe.prm import PrmSpec
from polydec.lab.train.target import load_autoregressive_model
from polydec.models.learned.kinds import step_reward
from polydec.models.learned.kinds.step_reward import StepReward
from polydec.models.sessions.checkpoint import ModelBundle


@dataclass(frozen=True, eq=False)
class StepRewardExamples(ProbeExamples):
    """States behind steps, and whether all is right there.

    Attributes:
        kind_N: Of which kind of problem each is: its place in `problems.KINDS`.
    """

    kind_N: Tensor


def trainable_step_reward(start: StepReward) -> TrainableProbe[StepReward]:
    """The weights of a head with one hidden layer, to be trained."""

    def build(*t: Tensor) -> StepReward:
        return StepReward((t[0], t[1]), (t[2], t[3]), start.vocab)

    return TrainableProbe(build, parts=(*start.inner, *start.out))


def prepare_probe(spec: PrmSpec) -> ProbeTraining[StepRewardExamples]:
    """Draw and label solutions, a quarter as many of held-out problems."""
    point = load_autoregressive_model(spec.target)

    def solve_file(file: str, each: int, unseen: bool) -> list[LabelledSolution]:
        """Draw solutions of problems.

        Args:
            file: Name of the file in spec.out that holds them.
            each: Problems of each kind.
            unseen: Whether the problems are held out from training.

        Returns:
            The solutions with their labels.
        """
        return draw_solutions(
            Path(spec.out) / file,
            point,
            spec.kinds,
            each,
            temperature=spec.temperature,
            seed=spec.seed + 1,
            unseen=unseen,
        )

    drawn = solve_file("text.jsonl", spec.each, unseen=False)
    # Every eighth solution is set aside, whole: its steps are alike.
    lessons = label_solution_steps(point, [d for i, d in enumerate(drawn) if i % 8])
    aside = label_solution_steps(point, drawn[::8])
    # A quarter as many problems that no training saw.
    unseen = label_solution_steps(
        point, solve_file("held.jsonl", max(1, spec.each // 4), unseen=True)
    )
    width = lessons.input_NX.shape[1]
    head = trainable_step_reward(
        step_reward.new_step_reward(width, spec.inner, point.lm.vocab, spec.seed)
    )

    def part_loss(part: StepRewardExamples) -> Tensor:
        return binary_cross_entropy_with_logits(
            head.current_probe().step_logits(part.input_NX), part.label_N
        )

    about = {"target": spec.target, "temperature": spec.temperature}
    return ProbeTraining(
        head,
        lessons,
        part_loss,
        lambda: {
            "states": len(lessons),
            "loss_aside": float(part_loss(aside)),
            "held_out": measure_step_reward(head.current_probe(), unseen),
        },
        lambda out, result: step_reward.save(out, head.current_probe(), about),
        lambda: part_loss(aside),
        {"states": len(lessons)},
    )


def label_solution_steps(
    point: ModelBundle, drawn: Sequence[LabelledSolution]
) -> StepRewardExamples:
    """Label the end of every line of solutions. What was cut off in a line has none.

    Args:
        point: The model that drew the solutions; its states are read.
        drawn: Solutions whose tokens a checker labelled.

    Returns:
        The states behind these lines, and whether all is right there.

    Raises:
        RequestError: No solution has a line that ends, so there is nothing to learn from.
    """
    (line_break,) = point.text.encode("\n", special=False)
    order = tuple(problems.KINDS)
    closing = {line_break, *point.lm.vocab.eos}
    state = list[Tensor]()
    right = list[bool]()
    kind = list[int]()
    for d in drawn:
        ends = [i for i, x in enumerate(d.output_ids) if x in closing]
        # There is no state after the last token that is read: a line break stands behind all others.
        behind_NH = read_target_states(point.lm, (*d.prompt_ids, *d.output_ids, line_break))[0][
            len(d.prompt_ids) :
        ]
        state += [behind_NH[i] for i in ends]
        right += [d.right[i] for i in ends]
        kind += [order.index(d.problem.kind)] * len(ends)
    if not state:
        raise RequestError(
            f"none of {len(drawn)} solutions of the target has a line that ends: give more problems (each) or "
            "a target that solves them"
        )
    return StepRewardExamples(torch.stack(state), torch.tensor(right).float(), torch.tensor(kind))


@torch.no_grad()
def measure_step_reward(reward: StepReward, lessons: StepRewardExamples) -> dict[str, Any]:
    """Compare values of steps with what the checker says of them.

    Over all kinds of problems together, `ranked` would mostly say that easy kinds are easy.

    Args:
        reward: The process reward model.
        lessons: Steps of held-out problems.

    Returns:
        steps: how many; right: the share that is; told: how often a value above 1/2 says what is
        so; ranked: of each kind of problem how often, of a right and a wrong step of it, the right
        one is valued more (0.5 is chance; None where all are right or all are wrong).
    """
    value_N = reward.step_logits(lessons.input_NX)
    right_N = lessons.label_N > 0.5

    def ranked_steps(kind: int) -> float | None:
        own_N = lessons.kind_N == kind
        good = value_N[own_N & right_N]
        # The share of pairs in which the right step has the higher value: the area under the curve.
        bad = value_N[own_N & ~right_N]
        if len(good) and len(bad):
            return float((good[:, None] > bad[None]).float().mean())
        return None

    names = {name: i for i, name in enumerate(problems.KINDS) if i in lessons.kind_N.tolist()}
    return {
        "steps": len(right_N),
        "right": float(right_N.float().mean()),
        "told": float(((value_N > 0) == right_N).float().mean()),
        "ranked": {name: ranked_steps(names[name]) for name in sorted(names)},
    }
