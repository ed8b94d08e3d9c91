"""`polydec train joint`: a layer that corrects a masked-diffusion model's states (ADJUST).

It shows the states of a pass what was written since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polydec.lab.train.diffusion import (
    DiffusionSpec,
    DiffusionStudent,
    DiffusionTaskRows,
    start_diffusion_student,
)
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.reasoner import last_layer_states
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.joint import JointSpec
from polydec.lab.train.target import of_one_canvas
from polydec.models.learned.kinds import joint
from polydec.models.learned.kinds.joint import JointSamplerLayer
from polydec.request.loading import load

KNOWN = 1e-4
"""Nats that are added to the entropy of every step: so often a token that was known is learned
from."""

VARIED_ROWS = (72, 88)
"""Positions of the shortest and the longest rows where lengths and values vary."""


@dataclass(frozen=True)
class AnswerTrajectories:
    """Answers, and when each of their tokens was written.

    Attributes:
        token_BT: Token ids of prompts and answers, shape ``[B, T]``.
        at_BT: Step at which each token was written, from 0; -1 where a token is given, shape ``[B,
            T]``.
        nats_BS: Entropy of the law that the token of each step was drawn from, in nats; 0 after an
            answer's last step, shape ``[B, S]``.
    """

    token_BT: Tensor
    at_BT: Tensor
    nats_BS: Tensor

    def canvas_before(self, step_B: Tensor, mask: int) -> Tensor:
        """The canvases as they were before some steps.

        Args:
            step_B: A step for each answer, shape ``[B]``.
            mask: Id of a gap.

        Returns:
            Token ids, with gaps for all that is written later, shape ``[B, T]``.
        """
        # A given token has step -1, and is never hidden.
        return self.token_BT.masked_fill(self.at_BT >= step_B[:, None], mask)


def train_joint(spec: JointSpec) -> dict[str, Any]:
    """Train a layer that adjusts a masked-diffusion model's states, and save it at spec.out.

    On answers that are set aside the divergence (nats a gap) of the model's own laws is measured,
    by the number of tokens since the last pass: `adjusted` from what the layer gives, `stale` from
    the laws of that pass. See `run_training`.
    """
    return run_training("joint", spec, _course)


def _course(spec: JointSpec) -> TrainingRun:
    lm = load(spec.target, draft=None, threads=torch.get_num_threads())
    of_one_canvas(lm.checkpoint.lm, spec.target)
    if spec.varied:
        shortest, longest = VARIED_ROWS
    else:
        shortest = DiffusionSpec.shortest
        longest = DiffusionSpec.length
    longest = min(longest, lm.network.context)
    # The prompts come from the tasks that masked-diffusion models are trained on.
    about = DiffusionSpec(
        "",
        spec.tasks,
        rows=spec.rows,
        start=spec.target,
        shortest=min(shortest, longest),
        length=longest,
        seed=spec.seed,
        varied=spec.varied,
    )
    student = start_diffusion_student(about)
    # The model itself is frozen; only the layer learns.
    student.network.requires_grad_(False).eval()
    rows = DiffusionTaskRows(student.tokenizer, about)
    rng = torch.Generator().manual_seed(spec.seed)
    # All trajectories are drawn before training; the last batch is set aside.
    answers = [
        sample_answer_trajectories(student, *rows.batch_rows(i), rng)
        for i in range(-(-spec.texts // spec.rows) + 1)
    ]
    aside = answers.pop()
    s = student.network.s
    net = _TrainableJointLayer(
        joint.new_joint_layer(s.width, s.heads, s.inner, s.theta, lm.checkpoint.lm.vocab, spec.seed)
    )

    def step_loss(step: int) -> tuple[Tensor, int]:
        g = torch.Generator().manual_seed(spec.seed * 1_000_003 + step)
        batch = answers[int(torch.randint(len(answers), (), generator=g))]
        # Distances are drawn with halving probability: most layers run shortly after a pass.
        far = 1 + int(
            torch.multinomial(0.5 ** torch.arange(spec.count - 1).double(), 1, generator=g)
        )
        return joint_layer_divergences(student, net.current_layer(), batch, far, g)[
            0
        ], batch.token_BT.numel()

    # For each distance, as the layer is for canvases that have moved on.
    def measure_result() -> dict[str, Any]:
        by_far = [held_out_distance(net.current_layer(), far) for far in range(1, spec.count)]
        return {
            "answers": sum(len(w.token_BT) for w in answers),
            "adjusted": [round(adjusted, 4) for adjusted, _ in by_far],
            "stale": [round(stale, 4) for _, stale in by_far],
        }

    @torch.no_grad()
    def held_out_distance(layer: JointSamplerLayer, far: int) -> tuple[float, float]:
        """Measure on the answers that are set aside, as the mean of eight draws of canvases.

        Args:
            layer: The layer as it is now.
            far: Tokens written since the pass, 1 or more.

        Returns:
            Nats a gap from the layer's laws, and from those of the pass.
        """
        # Eight draws with fixed seeds: the same canvases before and after training.
        draws = [
            joint_layer_divergences(student, layer, aside, far, torch.Generator().manual_seed(i))
            for i in range(8)
        ]
        adjusted, stale = torch.tensor(draws).mean(0).tolist()
        return adjusted, stale

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the layer as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; it goes into the artefact.
        """
        about = {"target": spec.target, "tasks": list(spec.tasks), **result}
        joint.save(out, net.current_layer(), about)

    schedule = TrainingSchedule(
        spec.steps, spec.rate, weight_decay=0.0, log_every=min(20, spec.steps)
    )
    known_as = run_identity(spec, answers=tensor_digest(*(w.token_BT for w in answers)))
    return TrainingRun(net, step_loss, schedule, known_as, save_result, measure_result)


class _TrainableJointLayer(nn.Module):
    """The numbers of a layer, as parameters."""

    def __init__(self, begun: JointSamplerLayer) -> None:
        super().__init__()
        self._begun = begun
        self._names = list(begun.layer.tensors)
        # Parameters in a fixed order: first those outside of the transformer layer, then those
        # inside.
        outside = (begun.fuse_H2, begun.token_H, begun.state_H, begun.out_H)
        self.p = nn.ParameterList([*outside, *begun.layer.tensors.values()])

    def current_layer(self) -> JointSamplerLayer:
        """The layer with the numbers as they are now."""
        fuse, token, state, out, *inside = self.p
        layer = replace(self._begun.layer, tensors=dict(zip(self._names, inside, strict=True)))
        return replace(
            self._begun, fuse_H2=fuse, token_H=token, state_H=state, out_H=out, layer=layer
        )


@torch.no_grad()
def sample_answer_trajectories(
    student: DiffusionStudent, token_BT: Tensor, answer_BT: Tensor, rng: torch.Generator
) -> AnswerTrajectories:
    """Let the model answer, one token a pass at the gap of lowest entropy.

    Args:
        student: The masked-diffusion model.
        token_BT: Token ids; those of the answers are not read, shape ``[B, T]``.
        answer_BT: Which positions belong to the answer, shape ``[B, T]``.
        rng: Source of the tokens; it is advanced.

    Returns:
        The answers and the order in which they were written.
    """
    token_BT = token_BT.masked_fill(answer_BT, student.mask)
    # -2 marks a gap that is still open.
    at_BT = torch.where(answer_BT, -2, -1)
    nats_BS = torch.zeros(len(token_BT), int(answer_BT.sum(1).max()))
    for step in range(nats_BS.shape[1]):
        p_BTV = gap_log_probs(student, last_layer_states(student.network.model, token_BT)).exp()
        # What is no gap gets infinite entropy, and is never chosen.
        nats_BT = torch.special.entr(p_BTV).sum(-1).masked_fill(at_BT != -2, float("inf"))
        # Answers of different length end at different steps; a full one is left alone.
        open_B = (at_BT == -2).any(1).nonzero()[:, 0]
        best_B = nats_BT[open_B].argmin(1)
        token_BT[open_B, best_B] = torch.multinomial(p_BTV[open_B, best_B], 1, generator=rng)[:, 0]
        at_BT[open_B, best_B], nats_BS[open_B, step] = step, nats_BT[open_B, best_B]
    return AnswerTrajectories(token_BT, at_BT, nats_BS)


def gap_log_probs(student: DiffusionStudent, state_BTH: Tensor) -> Tensor:
    """Log-probabilities of states after the last layer; a mask is never predicted.

    Args:
        student: The masked-diffusion model.
        state_BTH: States before the final norm, shape ``[B, T, H]``.

    Returns:
        Shape ``[B, T, V]``.
    """
    logits = student.network.token_logits(student.network.model.norm(state_BTH)).float()
    return logits.index_fill(-1, torch.tensor([student.mask]), float("-inf")).log_softmax(-1)


def sample_start_steps(answers: AnswerTrajectories, far: int, g: torch.Generator) -> Tensor:
    """Draw a step of each answer that at least `far` more steps follow.

    Steps are drawn in proportion to the entropy of their token: a token that was known, as most
    ends are, tells the other gaps nothing, and nothing is learned from it.

    Args:
        answers: Answers with their order, B of them.
        far: Steps that must follow, 1 or more.
        g: Source of randomness; it is advanced.

    Returns:
        Steps, shape ``[B]``.
    """
    count_B1 = answers.at_BT.max(1, keepdim=True).values + 1
    # Steps that fewer than `far` follow get no weight.
    late_BS = torch.arange(answers.nats_BS.shape[1]) >= count_B1 - far
    return torch.multinomial((answers.nats_BS + KNOWN).masked_fill(late_BS, 0.0), 1, generator=g)[
        :, 0
    ]


def joint_layer_divergences(
    student: DiffusionStudent,
    layer: JointSamplerLayer,
    answers: AnswerTrajectories,
    far: int,
    g: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """How far the layer's laws lie from the model's, on canvases drawn at random.

    From a canvas `far` tokens are written. The truth is what a pass of the model gives then; the
    layer starts from the states of the pass before, and runs once for each token.

    Args:
        student: The masked-diffusion model, frozen.
        layer: The layer.
        answers: Answers with their order.
        far: Tokens since the pass, 1 or more; answers that have no more are left out.
        g: Source of randomness; it is advanced.

    Returns:
        KL(truth || layer) and KL(truth || laws of the pass), both in nats a gap.
    """
    # Only answers with more steps than `far` have a canvas that late.
    keep = answers.at_BT.max(1).values + 1 > far
    answers = AnswerTrajectories(answers.token_BT[keep], answers.at_BT[keep], answers.nats_BS[keep])
    first_B = sample_start_steps(answers, far, g)
    model = student.network.model
    with torch.no_grad():
        state_BTH = before = last_layer_states(model, answers.canvas_before(first_B, student.mask))
        last = answers.canvas_before(first_B + far, student.mask)
        true_BTV = gap_log_probs(student, last_layer_states(model, last))
        # Only gaps that are left after `far` tokens are compared.
        gap_BT = last == student.mask
    # The layer sees the embeddings of each canvas and the states that it made for the one before.
    for step in range(1, far + 1):
        state_BTH = layer(
            model.embed_tokens(answers.canvas_before(first_B + step, student.mask)), state_BTH
        )

    def state_nats(state: Tensor) -> Tensor:
        term = true_BTV.exp() * (true_BTV - gap_log_probs(student, state))
        # Where the truth is 0 its term is 0, not the product of 0 and infinity.
        return term.masked_fill(true_BTV == float("-inf"), 0.0).sum(-1)[gap_BT].mean()

    return state_nats(state_BTH), state_nats(before)
