"""Hidden chains of thought: one vector of a model that thinks stands for the steps.

Two models of one size. The one that thinks is trained first: behind a question and a mark it writes
the steps (cross-entropy), and its state at the mark is drawn to the mean of its states over the
steps alone, away from those of the other questions of the batch (a symmetric contrastive loss over
cosines). The mark stands before the steps, as when it is used, so the state has seen the question
and nothing else. Then it is frozen, and the second model, begun with its weights, learns to answer
behind the question and the vector. Beside it stand a model that answers at once (`reasoning` none),
and one that writes the steps (chain).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.lab.train import sums
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.sums import ANSWER, LastDigitSum
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer
from polydec.models.learned.kinds import thought

MARK = "<|thought|>"
"""Stands where a model that thinks is read."""

VOCAB = 261
CONTEXT = 64
UNSEEN = 1000
"""Bytes and special tokens; positions; sums that the trained model is asked."""

SHARPNESS = 20.0
"""Of the contrastive loss: one over its temperature."""

TOKENIZER = train_tokenizer([], VOCAB, (MARK,))
# Letters are single bytes, so a text has as many tokens as letters.
IDS = {x: mark_id(TOKENIZER, x) for x in (BEGIN, END, MARK)} | {
    x: TOKENIZER.encode(x, add_special_tokens=False).ids[0] for x in "0123456789+-*="
}
FILES = tokenizer_files(TOKENIZER, CONTEXT, (MARK,))


class TrainableThoughtProjection(nn.Module):
    """Makes an input vector of a state: a linear map, a layer norm and a scale.

    The trainable form of models/learned/kinds/thought.py.
    """

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        # It begins as the identity, and its output as large as an embedding.
        self.weight = nn.Parameter(torch.eye(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.full((width,), scale))

    def forward(self, state_BH: Tensor) -> Tensor:
        """The vectors that stand for states, shape ``[B, H]``."""
        x = F.linear(state_BH, self.weight, self.bias)
        return F.layer_norm(x, x.shape[-1:]) * self.scale

    def thought_artefact(self) -> thought.ThoughtProjection:
        """The artefact with these weights."""
        w, b, s = (t.detach().clone() for t in (self.weight, self.bias, self.scale))
        return thought.ThoughtProjection(w, b, s, IDS[MARK])


class HiddenThoughtAnswerer(nn.Module):
    """The model that answers, and what makes its vectors."""

    def __init__(self, network: TrainableLlama, seed: int) -> None:
        super().__init__()
        self.network = network
        table = network.model.embed_tokens.weight
        self.bridge = TrainableThoughtProjection(network.s.width, float(table.detach().std()))

    def answer_logits(self, rows: Sequence[LastDigitSum], state_BH: Tensor) -> Tensor:
        """Predict the answer and END, each after the tokens before it.

        Args:
            rows: Sums, B of them.
            state_BH: States of the thinking model at its mark, shape ``[B, H]``.

        Returns:
            Logits after the mark of the answer and after the answer, shape ``[B, 2, V]``.
        """
        trunk = self.network.model
        before = trunk.embed_tokens(encode_sum_questions(rows))
        behind = trunk.embed_tokens(torch.tensor([[IDS[ANSWER], IDS[row.answer]] for row in rows]))
        # The text is: question, vector, mark of the answer, answer.
        x = torch.cat([before, self.bridge(state_BH)[:, None], behind], dim=1)
        # The mark predicts the digit, and the digit END.
        return self.network.token_logits(trunk.norm(forward_with_past(trunk, x)[0]))[:, -2:]


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs.

    The model that thinks is trained first, into a directory of its own.
    """
    if spec.reasoning == "latent":
        return _answering(spec)
    network = new_sum_network(spec)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rows = draw_sum_batch(spec, step)
        # Without steps the model learns to answer at once.
        chains = [row.chain if spec.reasoning == "chain" else "" for row in rows]
        return chain_nats_per_token(network, rows, chains), spec.rows * CONTEXT

    def save_result(out: Path, result: Any) -> None:
        """Write a directory that `polydec.load` reads.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        save_network(out, network)

    def measure_result() -> dict[str, Any]:
        return {
            "parameters": parameter_count(network),
            "right": right_written(network, held_out_sums(spec)),
        }

    return TrainingRun(
        network,
        step_loss,
        hidden_cot_schedule(spec),
        run_identity(spec),
        save_result,
        measure_result,
    )


def _answering(spec: ContextSpec) -> TrainingRun:
    # Three fifths of the steps train the model that thinks, the rest the one that answers.
    first = replace(spec, out=str(Path(spec.out) / "thinker"), steps=max(1, spec.steps * 3 // 5))
    told = run_training("context hidden-cot, what thinks", first, _thinking)
    thinker = load_directory(first.out)
    # The answering model begins with the thinker's weights; the thinker itself stays frozen.
    answering = HiddenThoughtAnswerer(load_directory(first.out).requires_grad_(True), spec.seed)
    second = replace(spec, steps=max(1, spec.steps - first.steps))

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Steps are numbered on, so that no sum of the first training is drawn again.
        rows = draw_sum_batch(spec, first.steps + step)
        # The answer is one token, and the end says that nothing follows.
        goal_B2 = torch.tensor([[IDS[row.answer], IDS[END]] for row in rows])
        logits_B2V = answering.answer_logits(rows, thinker_mark_states(thinker, rows))
        return F.cross_entropy(logits_B2V.flatten(0, 1), goal_B2.flatten()), spec.rows * CONTEXT

    def save_result(out: Path, result: Any) -> None:
        """Write the model, and the projection into a folder below it.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        save_network(out, answering.network)
        thought.save(out / "thought", answering.bridge.thought_artefact(), {"target": out.name})

    def measure_result() -> dict[str, Any]:
        rows = held_out_sums(spec)
        state_BH = thinker_mark_states(thinker, rows)
        # Two controls: the vector of another question, and a vector of zeros.
        found = {
            "right": sum_accuracy(answering, rows, state_BH),
            "of_another": sum_accuracy(answering, rows, state_BH.roll(1, 0)),
            "of_zeros": sum_accuracy(answering, rows, torch.zeros_like(state_BH)),
        }
        return {
            "parameters": parameter_count(thinker) + parameter_count(answering),
            **found,
            "found_again": told["found_again"],
        }

    return TrainingRun(
        answering,
        step_loss,
        hidden_cot_schedule(second),
        run_identity(spec),
        save_result,
        measure_result,
    )


def _thinking(spec: ContextSpec) -> TrainingRun:
    network = new_sum_network(spec)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rows = draw_sum_batch(spec, step)
        return thinking_loss(network, rows), spec.rows * CONTEXT

    def save_result(out: Path, result: Any) -> None:
        """Write a directory that `polydec.load` reads.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        save_network(out, network)

    def measure_result() -> dict[str, Any]:
        return {
            "parameters": parameter_count(network),
            "found_again": found_again(network, held_out_sums(spec)),
        }

    return TrainingRun(
        network,
        step_loss,
        hidden_cot_schedule(spec),
        run_identity(spec),
        save_result,
        measure_result,
    )


def new_sum_network(spec: ContextSpec) -> TrainableLlama:
    """A new network of the given width and depth, with heads of 16."""
    heads = spec.width // 16
    shape = LlamaShape(VOCAB, spec.width, spec.layers, heads, heads, 3 * spec.width, CONTEXT)
    return TrainableLlama(shape, seed=spec.seed)


def hidden_cot_schedule(spec: ContextSpec) -> TrainingSchedule:
    """The schedule of a training of `spec.steps` steps."""
    return TrainingSchedule(spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps))


def parameter_count(network: nn.Module) -> int:
    """Number of weights."""
    return sum(p.numel() for p in network.parameters())


def draw_sum_batch(spec: ContextSpec, step: int) -> list[LastDigitSum]:
    """Draw the sums of a step.

    Args:
        spec: Options; `seed`, `rows` and `hops` are read.
        step: Step of the training, which names the draws.

    Returns:
        `spec.rows` sums that are not held out.
    """
    return [
        sums.draw_last_digit_sum(f"{spec.seed} {step} {i}", spec.hops) for i in range(spec.rows)
    ]


def held_out_sums(spec: ContextSpec) -> list[LastDigitSum]:
    """UNSEEN sums that no training sees."""
    return [sums.draw_last_digit_sum(f"unseen {i}", spec.hops, True) for i in range(UNSEEN)]


def save_network(out: Path, network: TrainableLlama) -> None:
    """Save a model as a directory that `polydec.load` reads.

    Args:
        out: Directory to write.
        network: The model.
    """
    config = network.s.config_content(bos=IDS[BEGIN], eos=IDS[END])
    save_directory(out, network, config, files=FILES, dtype=torch.float32)


def encode_sum_text(text: str) -> list[int]:
    """Token ids of a text of digits and signs."""
    return [IDS[x] for x in text]


def encode_sum_questions(rows: Sequence[LastDigitSum], *more: int) -> Tensor:
    """Encode questions, and the same further tokens after each.

    Args:
        rows: Sums, B of them.
        *more: Token ids that follow each question.

    Returns:
        Token ids after BEGIN, shape ``[B, T]``.
    """
    return torch.tensor([[IDS[BEGIN], *encode_sum_text(row.question), *more] for row in rows])


def chain_nats_per_token(
    network: TrainableLlama, rows: Sequence[LastDigitSum], chains: Sequence[str]
) -> Tensor:
    """The loss of a written chain, the answer and END.

    Args:
        network: The model in training.
        rows: Sums, B of them.
        chains: Text between each question and its answer; all of one length.

    Returns:
        Nats a token.
    """
    # Chains of one length make a rectangle without padding.
    goal_BT = torch.tensor(
        [
            [*encode_sum_text(c + ANSWER + row.answer), IDS[END]]
            for c, row in zip(chains, rows, strict=True)
        ]
    )
    question_BT = encode_sum_questions(rows)
    logits_BTV = network(torch.cat([question_BT, goal_BT[:, :-1]], dim=1))
    # The last token of the question predicts the first of the chain.
    logits_BTV = logits_BTV[:, question_BT.shape[1] - 1 :]
    return F.cross_entropy(logits_BTV.flatten(0, 1), goal_BT.flatten())


def thinking_loss(network: TrainableLlama, rows: Sequence[LastDigitSum]) -> Tensor:
    """The loss of the model that thinks.

    It adds the nats a token of the steps, written after question and mark, and the contrastive loss
    between the states at the mark and the mean states over the steps.

    Args:
        network: The model in training.
        rows: Sums, B of them; all serve as each other's negatives.

    Returns:
        The loss, in nats.
    """
    chain_BT = torch.tensor([encode_sum_text(row.chain) for row in rows])
    asked_BT = encode_sum_questions(rows, IDS[MARK])
    state_BTH = network.model(torch.cat([asked_BT, chain_BT], dim=1))
    # The mark is the last token before the steps: its state has seen the question only.
    at = asked_BT.shape[1] - 1
    logits_BTV = network.token_logits(state_BTH[:, at:-1])
    # The mark predicts the first step, and each step the next.
    wrote = F.cross_entropy(logits_BTV.flatten(0, 1), chain_BT.flatten())
    return wrote + info_nce_loss(state_BTH[:, at], of_chains(network, rows))


def of_chains(network: TrainableLlama, rows: Sequence[LastDigitSum]) -> Tensor:
    """The mean state over each row's steps, which are read alone.

    Args:
        network: The model.
        rows: Sums, B of them.

    Returns:
        States, shape ``[B, H]``.
    """
    chain_BT = torch.tensor([[IDS[BEGIN], *encode_sum_text(row.chain)] for row in rows])
    # BEGIN's own state has no part in the mean.
    return network.model(chain_BT)[:, 1:].mean(1)


def info_nce_loss(a_BH: Tensor, b_BH: Tensor) -> Tensor:
    """A symmetric InfoNCE loss over cosines: each row has to find its partner among the batch.

    Args:
        a_BH: Vectors, shape ``[B, H]``.
        b_BH: Their partners, row by row, shape ``[B, H]``.

    Returns:
        Mean cross-entropy of both directions, in nats.
    """
    like_BB = SHARPNESS * F.normalize(a_BH, dim=-1) @ F.normalize(b_BH, dim=-1).T
    # The partner of row i is column i.
    own_B = torch.arange(len(a_BH))
    return (F.cross_entropy(like_BB, own_B) + F.cross_entropy(like_BB.T, own_B)) / 2


@torch.no_grad()
def thinker_mark_states(thinker: TrainableLlama, rows: Sequence[LastDigitSum]) -> Tensor:
    """The states of the frozen thinking model at its mark.

    Args:
        thinker: The model that thinks.
        rows: Sums, B of them.

    Returns:
        States after the final norm, without gradients, shape ``[B, H]``.
    """
    return thinker.model(encode_sum_questions(rows, IDS[MARK]))[:, -1]


@torch.no_grad()
def sum_accuracy(
    answering: HiddenThoughtAnswerer, rows: Sequence[LastDigitSum], state_BH: Tensor
) -> float:
    """The share of sums that are answered right with given states.

    Args:
        answering: The model that answers.
        rows: Sums, B of them.
        state_BH: A state for each sum, shape ``[B, H]``.

    Returns:
        0 to 1.
    """
    goal_B = torch.tensor([IDS[row.answer] for row in rows])
    return float(
        (answering.answer_logits(rows, state_BH)[:, 0].argmax(-1) == goal_B).float().mean()
    )


@torch.no_grad()
def right_written(network: TrainableLlama, rows: Sequence[LastDigitSum]) -> float:
    """The share of sums whose greedily written answer is right.

    Args:
        network: The model, which may write steps first.
        rows: Sums, B of them.

    Returns:
        0 to 1.
    """
    text_BT = encode_sum_questions(rows)
    # As long as the chain, the mark of the answer, the digit and END.
    for _ in range(len(rows[0].chain) + 3):
        text_BT = torch.cat([text_BT, network(text_BT)[:, -1:].argmax(-1)], dim=1)
    ends = [[*encode_sum_text(ANSWER + row.answer), IDS[END]] for row in rows]
    # The answer counts wherever it stands, with END after it.
    return sum(
        any(text[i : i + 3] == end for i in range(len(text) - 2))
        for text, end in zip(text_BT.tolist(), ends, strict=True)
    ) / len(rows)


@torch.no_grad()
def found_again(network: TrainableLlama, rows: Sequence[LastDigitSum], of: int = 64) -> float:
    """How often the state at the mark is nearest to the mean state of its own steps.

    Args:
        network: The model that thinks.
        rows: Sums; a remainder below `of` is left out.
        of: Sums among which the partner is searched, so chance is 1 / of. Default 64.

    Returns:
        0 to 1.
    """
    found = list[float]()
    # Partners are searched within groups of `of` rows.
    for at in range(0, len(rows) - of + 1, of):
        some = rows[at : at + of]
        like = (
            F.normalize(thinker_mark_states(network, some), dim=-1)
            @ F.normalize(of_chains(network, some), dim=-1).T
        )
        found.append(float((like.argmax(-1) == torch.arange(of)).float().mean()))
    return sum(found) / len(found)
