"""`polydec train diffusion`: a small masked-diffusion language model from scratch."""
from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from polydec import files
from polydec.train.data import ASSISTANT, BEGIN, END, USER
from polydec.train.loop import Schedule, fit
from polydec.train.network import Llama, Shape, bidirectional, save_directory
from polydec.train.progress import shown
from polydec.train.tasks import TASKS, make
from polydec.train.tokens import mark_id, tokenizer_files, train_tokenizer

VOCAB = 416
"""Tokens of the tokenizer; the mask is one more."""

LEAST = 1e-3
"""The smallest chance of a mask."""


@dataclass(frozen=True)
class DiffusionSpec:
    """What `train_diffusion` makes.

    out: the directory to write; tasks: names of TASKS, which take turns; steps: optimiser steps; rows: tasks a step;
    shortest, length: the fewest and the most positions of a row, question and answer together, the rest of it EOS (all rows of
    a step are equally long); width, layers: of the network; seed; rate: the highest learning rate.
    """
    out: str
    tasks: tuple[str, ...] = tuple(TASKS)
    steps: int = 4000
    rows: int = 64
    shortest: int = 27
    length: int = 32
    width: int = 128
    layers: int = 4
    seed: int = 0
    rate: float = 2e-3

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 16 <= self.length <= 4096:
            raise ValueError(f"length is {self.length}: it must lie in 16 to 4096")
        if not 16 <= self.shortest <= self.length:
            raise ValueError(f"shortest is {self.shortest}: it must lie in 16 to length ({self.length})")
        if self.width < 32 or self.width % 32:
            raise ValueError(f"width is {self.width}: it must be a multiple of 32")
        if not self.tasks:
            raise ValueError(f"tasks is empty: name some of {', '.join(TASKS)}")
        for name in self.tasks:
            make(name, 0, 0)


def train_diffusion(spec: DiffusionSpec) -> dict[str, Any]:
    """Train, and save a directory that `polydec.load` reads at spec.out; what was measured (also in out/training.json).

    Interrupted, it goes on from out/state.pt when called again. Raises ValueError on a wrong spec, or a state that belongs to
    another run."""
    out, began = Path(spec.out), time.perf_counter()
    tokenizer = train_tokenizer([text for i in range(2000) for text in _texts(spec, i)], VOCAB)
    size = tokenizer.get_vocab_size()
    shape = Shape(size + 1, spec.width, spec.layers, spec.width // 32, spec.width // 32, 3 * spec.width, spec.length)
    network = bidirectional(Llama(shape, seed=spec.seed))
    rows = Rows(tokenizer, spec)

    def loss(step: int) -> tuple[Tensor, int]:
        token_BT, answer_BT = rows.batch(step)
        return masked_loss(network, token_BT, answer_BT, size, torch.Generator().manual_seed(spec.seed * 1_000_003 + step)), \
            token_BT.numel()

    schedule = Schedule(spec.steps, spec.rate, log_every=min(20, spec.steps))
    identity = {**{k: v for k, v in asdict(spec).items() if k != "out"}, "tasks": list(spec.tasks)}
    out.mkdir(parents=True, exist_ok=True)
    with shown("diffusion", spec.steps) as watch:
        curve = fit(network, loss, schedule, state=out / "state.pt", identity=identity, watch=watch)
    end, begin = tokenizer.token_to_id(END), tokenizer.token_to_id(BEGIN)
    config = {**shape.config(bos=begin, eos=end), "polydec_causal": False, "polydec_mask": size}
    save_directory(out, network, config, files=tokenizer_files(tokenizer, spec.length), dtype=torch.float32)
    result = {"parameters": sum(p.numel() for p in network.parameters()), "steps": spec.steps, "loss": curve[-1][1],
              "seconds": round(time.perf_counter() - began, 1), "curve": curve}
    files.replace(out / "training.json", lambda at: Path(at).write_text(json.dumps(result, indent=1) + "\n"))
    return result


def _texts(spec: DiffusionSpec, i: int) -> list[str]:
    task = make(spec.tasks[i % len(spec.tasks)], spec.seed, i)
    return [task.question, task.answer]


class Rows:
    """Batches of tasks as the chat template writes them; the answer and the EOS behind it fill the row."""
    def __init__(self, tokenizer: Tokenizer, spec: DiffusionSpec) -> None:
        self._tokenizer, self._spec = tokenizer, spec

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens [rows, length], and which of them belong to the answer. A function of the step alone."""
        spec = self._spec
        length = random.Random(f"{spec.seed} {step}").randint(spec.shortest, spec.length)
        some = [self._row(step * spec.rows + i, length) for i in range(spec.rows)]
        return torch.tensor([t for t, _ in some]), torch.tensor([[i >= n for i in range(length)] for _, n in some])

    def _row(self, i: int, length: int) -> tuple[Sequence[int], int]:
        spec = self._spec
        question, answer = _texts(spec, i)
        asked = self._ids(BEGIN + USER + question + END + ASSISTANT)
        said = self._ids(answer + END)
        left = length - len(asked) - len(said)
        if left < 0:
            raise ValueError(f"shortest is {spec.shortest}: task {question!r} and its answer take {length - left} positions")
        return [*asked, *said, *[mark_id(self._tokenizer, END)] * left], len(asked)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def masked_loss(network: Llama, token_BT: Tensor, answer_BT: Tensor, mask: int, rng: torch.Generator) -> Tensor:
    """The bound on an answer's negative log-likelihood, in nats a token of it: of each row a share t of the answer is masked, t
    uniform and spread evenly over the batch, and the cross-entropy at the masked positions is weighted by 1 / t."""
    B = len(token_BT)
    spread_B = (torch.rand((), generator=rng) / B + torch.arange(B) / B) % 1
    t_B1 = ((1 - LEAST) * spread_B + LEAST)[:, None]
    hidden_BT = (torch.rand(token_BT.shape, generator=rng) < t_B1) & answer_BT
    logits = network(token_BT.masked_fill(hidden_BT, mask)).float()
    logits = logits.index_fill(-1, torch.tensor([mask]), float("-inf"))         # a mask is never written
    loss_BT = F.cross_entropy(logits.transpose(1, 2), token_BT, reduction="none") * hidden_BT / t_B1
    return (loss_BT.sum(1) / answer_BT.sum(1)).mean()
