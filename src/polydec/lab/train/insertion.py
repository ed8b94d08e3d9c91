"""`polydec train insertion`: a small insertion language model, on the tasks of masked diffusion."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.data import ASSISTANT, BEGIN, END, SPECIAL, USER
from polydec.lab.train.diffusion import (
    DiffusionStudent,
    require_same_kind,
    save_tuned_student,
    start_diffusion_student,
)
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.insertion import InsertionSpec
from polydec.lab.train.tasks import draw_task, task_variety
from polydec.lab.train.tokens import mark_id


@dataclass(frozen=True)
class InsertionExample:
    """A prompt, and its answer of which some tokens are hidden.

    Attributes:
        prompt: Token ids of the prompt.
        answer: Token ids of the full answer.
        hidden: Indices of the hidden tokens in the answer.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    hidden: frozenset[int]

    @property
    def kept(self) -> tuple[int, ...]:
        """The tokens of the answer that are not hidden."""
        return tuple(x for i, x in enumerate(self.answer) if i not in self.hidden)

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Of each hidden token: the visible tokens of the answer before it, counted, and the token."""
        return [
            (sum(j not in self.hidden for j in range(i)), self.answer[i])
            for i in sorted(self.hidden)
        ]


@dataclass(frozen=True)
class InsertionMarks:
    """Ids with a special role.

    Attributes:
        mark: Stands before every text.
        end: Stands after every text.
        barred: Ids that are never inserted.
    """

    mark: int
    end: int
    barred: tuple[int, ...]


def train_insertion(spec: InsertionSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads.

    See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.

    Source: ILM, insertion language models (2025).
    """
    return run_training("insertion", spec, _course)


def _course(spec: InsertionSpec) -> TrainingRun:
    student = start_diffusion_student(spec.begin_samples())
    marks, bf16 = marks_of(student), is_bf16_run(Path(spec.out) / STATE)

    def step_loss(step: int) -> tuple[Tensor, int]:
        batch = draw_insertion_examples(spec, student, step)
        with bf16_autocast(bf16):
            return insertion_loss(student.network, batch, marks), sum(
                len(e.prompt) + len(e.kept) + 2 for e in batch
            )

    # A short run still logs something.
    schedule = TrainingSchedule(
        spec.steps,
        spec.rate,
        muon=0.0 if spec.lora else spec.muon,
        log_every=min(20, spec.steps),
    )
    kind = {"polydec_causal": False, "polydec_insertion": student.mask}
    begun = spec.begin_samples()
    require_same_kind(begun, kind)
    free = () if spec.lora else ("lora",)
    return TrainingRun(
        student.network,
        step_loss,
        schedule,
        run_identity(spec, *free, bf16=bf16),
        lambda out, result: save_tuned_student(out, student, begun, kind),
        lambda: {"parameters": sum(p.numel() for p in student.network.parameters())},
    )


def marks_of(student: DiffusionStudent) -> InsertionMarks:
    """The special ids of a student.

    The mark is the last id of the vocabulary, the gap of a masked-diffusion model.
    """
    # No special token is ever inserted, and no mark.
    known = [mark_id(student.tokenizer, mark) for mark in SPECIAL]
    return InsertionMarks(
        student.mask, mark_id(student.tokenizer, END), (*sorted({*known, student.mask}),)
    )


def draw_insertion_examples(
    spec: InsertionSpec, student: DiffusionStudent, step: int
) -> list[InsertionExample]:
    """Draw the examples of a step, a function of the step alone.

    Of each answer a number of tokens is hidden, uniform in 0 to all, and then any set of that size.

    Args:
        spec: Options; tasks, rows and context are read.
        student: Its tokenizer encodes the tasks.
        step: Step of the training, from 0.

    Returns:
        `spec.rows` examples.

    Raises:
        RequestError: A task does not fit into the context.
    """
    r = random.Random(f"{spec.seed} {step}")
    out = list[InsertionExample]()
    for i in range(step * spec.rows, (step + 1) * spec.rows):
        name = spec.tasks[i % len(spec.tasks)]
        task = draw_task(name, spec.seed, i, of=task_variety(spec.varied))
        prompt, answer = (
            tuple(student.tokenizer.encode(text, add_special_tokens=False).ids)
            for text in (BEGIN + USER + task.question + END + ASSISTANT, task.answer)
        )
        # Refused, not cut: a cut answer would teach the model to stop early.
        if len(prompt) + len(answer) + 2 > spec.context:
            raise RequestError(
                f"context is {spec.context}: task {task.question!r} and its answer take "
                f"{len(prompt) + len(answer) + 2} positions"
            )
        # First the number, then the set: all sizes are equally likely.
        hidden = r.sample(range(len(answer)), r.randint(0, len(answer)))
        out.append(InsertionExample(prompt, answer, frozenset(hidden)))
    return out


def insertion_loss(
    network: TrainableLlama, batch: Sequence[InsertionExample], marks: InsertionMarks
) -> Tensor:
    """The loss of an insertion model, in nats an example.

    It adds the cross-entropy of each hidden token and the slot where it is missing, under the law
    over (slot, token), averaged over the hidden tokens, and that of whether anything is missing.
    The prompt has one slot, after its last token. Examples are weighted by L + 1 for an answer of L
    tokens: as many sizes of hidden sets share its weight, and without that a perfect model would
    write long answers too seldom (p / (L + 1) in place of p).

    Args:
        network: The network in training, which sees both ways.
        batch: Examples, B of them.
        marks: The special ids.

    Returns:
        Nats an example.
    """
    # What the network reads: the mark, the prompt, the visible answer, the end.
    row = [(marks.mark, *e.prompt, *e.kept, marks.end) for e in batch]
    end = marks.end
    T = max(map(len, row))
    # Rows are filled up with the end, which nothing sees there.
    token_BT = torch.tensor([[*x, *[end] * (T - len(x))] for x in row])
    # Padding after the end is seen by no position.
    see_B1TT = torch.tensor([[i < len(x) for i in range(T)] for x in row])[:, None, None].expand(
        -1, 1, T, -1
    )
    # A slot is named by the position before it; those inside the prompt and after the end are none.
    slot_BT = torch.tensor(
        [
            [len(e.prompt) <= i < len(x) - 1 for i in range(T)]
            for e, x in zip(batch, row, strict=True)
        ]
    )
    logits_BTV = network(token_BT, None, see_B1TT).float()
    # At the first position two logits say whether the text is complete.
    whole_B2 = logits_BTV[:, 0, [marks.mark, end]]
    logw_BTV = logits_BTV.index_fill(-1, torch.tensor(marks.barred), float("-inf"))
    logw_BTV = logw_BTV.masked_fill(~slot_BT[..., None], float("-inf"))
    # One softmax over all slots and tokens of a text.
    logp_BTV = logw_BTV.flatten(1).log_softmax(-1).view_as(logw_BTV)

    # One entry for each hidden token of the batch: example, slot, token.
    at = [
        (b, len(e.prompt) + before, token)
        for b, e in enumerate(batch)
        for before, token in e.missing
    ]
    weight_B = torch.tensor([len(e.answer) + 1.0 for e in batch])
    # The mean weight is 1, so that the loss keeps its scale.
    weight_B = weight_B / weight_B.mean()
    # Complete is class 1, the end; incomplete class 0, the mark.
    total = (
        weight_B
        * F.cross_entropy(
            whole_B2, torch.tensor([int(not e.hidden) for e in batch]), reduction="none"
        )
    ).sum()
    if at:
        index_M, where_M, token_M = torch.tensor(at).unbind(1)
        # Each hidden token of an example counts alike.
        share_M = weight_B[index_M] / torch.tensor([len(e.hidden) or 1 for e in batch])[index_M]
        total = total - (share_M * logp_BTV[index_M, where_M, token_M]).sum()
    return total / len(batch)
