"""`polydec train lm --pairs`: answers learned behind their questions, and some without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.lab.train import pairs
from polydec.lab.train.data import BEGIN, END, held_out
from polydec.lab.train.envelope import STATE, TrainingRun
from polydec.lab.train.lm_student import begin_student, lm_schedule, save_lm_student
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.objectives.answer_tokens import AnswerTokens
from polydec.lab.train.objectives.objective_names import ANSWERING
from polydec.lab.train.objectives.protocols import mean_row_loss
from polydec.lab.train.specs.lm import PRESETS, LMSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files

JUDGED = 256
"""Held-out pairs that are measured, at most."""


def answer_run(spec: LMSpec) -> TrainingRun:
    """What is trained where pairs are given: a model that answers questions.

    A question stands in the chat template, and only its answer and the end of it are learned. A
    share `drop` of the questions is left out, which leaves an empty turn of a chat: what an empty
    negative prompt is to `--steer cfg`. Pairs whose question has a `hash_bucket` of 7 to 9 are held
    out and measured.

    Raises:
        RequestError: An option is wrong.
        FileError: The pairs cannot be read.

    Source: Kornblith et al., "Guiding image captioning models toward more specific captions"
    (2023), the share of conditions that is left out.
    """
    assert spec.pairs is not None
    out = Path(spec.out)
    preset = PRESETS[spec.preset]
    objective = ANSWERING[spec.objective](spec)
    texts = list(pairs.read_text_pairs(Path(spec.pairs)))
    # Held-out texts have no part in the vocabulary either.
    said = [t for p in texts if not held_out(p.source) for t in (p.source, p.target)]
    student, tokenizer = begin_student(spec, out, said, objective.special_marks)
    # Objectives name their marks; the tokenizer knows their numbers.
    ids = {mark: mark_id(tokenizer, mark) for mark in (BEGIN, END, *objective.special_marks)}
    examples = pairs.encode_chat_pairs(texts, tokenizer, student.s.context)
    # The empty question is what an empty negative prompt becomes at decoding.
    empty = pairs.empty_question(tokenizer)
    fast = is_bf16_run(out / STATE, spec.bf16)
    schedule = lm_schedule(spec)
    # Pairs of similar lengths are learned together, so that little is padding.
    steps = pairs.BucketBatchSampler(examples.lengths, preset.rows * preset.length, seed=spec.seed)

    def step_loss(step: int) -> tuple[Tensor, int]:
        dice = np.random.default_rng([spec.seed, step])
        # A step's rows follow from its number alone, so that a run can go on where it stopped.
        chosen = [examples.learned[i] for i in steps.indices_of_step(step)]
        if spec.drop:
            chosen = pairs.drop_sources(chosen, spec.drop, empty, dice)
        rows = [row for pair in chosen for row in objective.learned_rows(*pair, ids, dice)]
        with bf16_autocast(fast):
            loss = mean_row_loss(student, rows)
        return loss, sum(len(row.token_ids) for row in rows)

    def measure_result() -> Mapping[str, Any]:
        unseen = examples.unseen[:JUDGED]
        # How much an answer depends on its question shows where the question is left out.
        alone = [(empty, answer) for _, answer in unseen]
        return {
            "parameters": sum(p.numel() for p in student.parameters()),
            "pairs": len(examples.learned),
            "tokens": schedule.steps * steps.tokens,
            "bf16": fast,
            "held_out_nats": answer_token_nats(student, unseen),
            "held_out_nats_without": answer_token_nats(student, alone),
            "out": spec.out,
        }

    def save_result(at: Path, result: Mapping[str, Any]) -> None:
        """Save the network as a directory that `polydec.load` reads.

        Args:
            at: Directory to write.
            result: What was measured; it is not used.
        """
        written = tokenizer_files(tokenizer, student.s.context, objective.special_marks)
        save_lm_student(at, student, spec, written, ids[BEGIN], ids[END])

    # What must agree for an interrupted run to go on.
    same = {
        **asdict(schedule),
        **student.s.known_sizes,
        "seed": spec.seed,
        "tokenizer": tokenizer.to_str(),
        "bf16": fast,
        "start": spec.start or "",
        "lora": spec.lora,
        "objective": repr(objective),
        "drop": spec.drop,
        "pairs": examples.digest,
    }
    return TrainingRun(
        student, step_loss, schedule, same, save_result, measure_result, title=spec.preset
    )


@torch.no_grad()
def answer_token_nats(
    student: TrainableLlama, chosen: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> float | None:
    """The mean negative log-likelihood of answers' tokens, one text at a time.

    Args:
        student: The network.
        chosen: Token ids up to each answer, and of the answer with its end.

    Returns:
        Nats a token, each answer counting alike; None where there is no pair.
    """
    if not chosen:
        return None
    # The rows of plain answers draw nothing.
    nothing = np.random.default_rng(0)
    losses = [
        float(mean_row_loss(student, AnswerTokens().learned_rows(*pair, {}, nothing)))
        for pair in chosen
    ]
    return float(np.mean(losses))
