"""`polydec train steps`: a small model that finds the state to which a word leads.

It may write as many steps before as a mark allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional as F

from polydec.lab.train.automata import BEGIN, END, PAD, ScratchpadFormat, random_symbol_word
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import LlamaShape, TrainableLlama, save_directory
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.steps import HEAD, StepsSpec
from polydec.lab.train.tokens import tokenizer_files

NOT_LEARNED = -100
"""Stands for a token that is read and not learned to write."""

APART = 256
"""Words that are set aside to judge weights."""


def train_steps(spec: StepsSpec) -> dict[str, Any]:
    """Train, and save a directory that `polydec.load` reads at spec.out; see `run_training`."""
    return run_training("steps", spec, _course)


def _course(spec: StepsSpec) -> TrainingRun:
    writing = ScratchpadFormat(spec.task, spec.longest)
    heads = spec.width // HEAD
    shape = LlamaShape(
        len(writing.tokens),
        spec.width,
        spec.layers,
        heads,
        heads,
        4 * spec.width,
        writing.positions,
    )
    network, bf16 = TrainableLlama(shape, seed=spec.seed), is_bf16_run(Path(spec.out) / STATE)

    def step_loss(step: int) -> tuple[Tensor, int]:
        token_BT, goal_BT = draw_scratchpad_batch(spec, writing, step, spec.rows)
        with bf16_autocast(bf16):
            return learned_token_nats(network, token_BT, goal_BT), token_BT.numel()

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write a directory that `polydec.load` reads.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        config = shape.config_content(bos=writing.token_id(BEGIN), eos=writing.token_id(END))
        files = tokenizer_files(build_scratchpad_tokenizer(writing), shape.context)
        # A word is no turn of a talk.
        del files["tokenizer_config.json"]["chat_template"]
        save_directory(out, network, config, files=files, dtype=torch.float32)

    apart = draw_scratchpad_batch(spec, writing, -1, APART)
    about = {k: v for k, v in asdict(spec).items() if k != "out"}
    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps)),
        run_identity(spec, bf16=bf16),
        save_result,
        lambda: {"parameters": sum(p.numel() for p in network.parameters())},
        lambda: learned_token_nats(network, *apart),
        log={"about": about},
    )


def learned_token_nats(network: TrainableLlama, token_BT: Tensor, goal_BT: Tensor) -> Tensor:
    """Measure the loss on the tokens that are learned to write.

    Args:
        network: The network.
        token_BT: Token ids that it reads.
        goal_BT: The token that should follow each, or NOT_LEARNED.

    Returns:
        Mean cross-entropy of a learned token in nats, a scalar.
    """
    logits = network(token_BT).float().flatten(0, 1)
    return F.cross_entropy(logits, goal_BT.flatten(), ignore_index=NOT_LEARNED)


def draw_scratchpad_batch(
    spec: StepsSpec, writing: ScratchpadFormat, step: int, rows: int
) -> tuple[Tensor, Tensor]:
    """Draw words, and write them down with their steps. A function of the step alone.

    Args:
        spec: Names the task, lengths, budgets and the randomness.
        writing: How a word and its steps are written.
        step: Of the training; -1 is set aside.
        rows: How many words.

    Returns:
        Tokens ``[rows, T]``, and of each what should follow it where that is learned: all that
        stands behind the prompt.
    """
    r = Random(f"{spec.task} {spec.seed} {step}")
    read = list[list[int]]()
    goals = list[list[int]]()
    for _ in range(rows):
        symbols = random_symbol_word(r, r.choice(spec.lengths))
        budget = r.choice(spec.budgets)
        prompt = writing.encode_prompt(symbols, budget)
        behind = writing.encode_answer(symbols, budget)
        # Each token is read to learn the next one; those of the prompt are not learned.
        read.append([*prompt, *behind[:-1]])
        goals.append([*[NOT_LEARNED] * (len(prompt) - 1), *behind])
    longest = max(map(len, read))
    pad = writing.token_id(PAD)
    return (
        torch.tensor([row + [pad] * (longest - len(row)) for row in read]),
        torch.tensor([row + [NOT_LEARNED] * (longest - len(row)) for row in goals]),
    )


def build_scratchpad_tokenizer(writing: ScratchpadFormat) -> Tokenizer:
    """A token a word, with spaces between them, as in "a b b <pad> <linear>"."""
    made = Tokenizer(models.WordLevel({t: i for i, t in enumerate(writing.tokens)}, PAD))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (BEGIN, END)])
    made.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, writing.token_id(BEGIN))]
    )
    return made
