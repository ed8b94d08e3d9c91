"""What a target writes itself, and its states there: what heads and drafters are trained on."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from polydec.core.scheduler import run
from polydec.core.types import Reads, Want
from polydec.models.checkpoint import Checkpoint
from polydec.models.lm import LM
from polydec.models.text import Text
from polydec.train import selfplay
from polydec.train.data import data_root
from polydec.train.progress import counted
from polydec.train.selfplay import Mode, Sample


class Gathering(Protocol):
    """Which text a training wants: see StopHeadSpec."""
    @property
    def out(self) -> str: ...
    @property
    def data(self) -> str | None: ...
    @property
    def text(self) -> str | None: ...
    @property
    def each(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def seed(self) -> int: ...


def write_text(point: Checkpoint, path: Path, data: str | None, each: int, *, max_tokens: int, seed: int) -> None:
    """Let the target answer `each` prompts a kind into `path`, each in the mode of its own, and a tenth as many held-out ones
    into held.jsonl beside it. What is there already is passed over. data: where the prompts are, as in `data_root`."""
    for file, count, held in ((path, each, False), (path.with_name("held.jsonl"), max(1, each // 10), True)):
        with counted(f"writing {file.name}") as watch:
            selfplay.write(file, point.lm, point.text, data_root(data), count, max_tokens=max_tokens, seed=seed, held=held,
                           watch=watch)


def gather(spec: Gathering, lm: LM, text: Text, held: bool) -> list[Sample]:
    """The target's answers at the temperature, kept in out/text.jsonl (held-out prompts: held.jsonl, a third as many)."""
    path = Path(spec.text) if spec.text and not held else Path(spec.out) / ("held.jsonl" if held else "text.jsonl")
    if not path.exists():
        part = path.with_name(f"{path.stem}.part.jsonl")          # what an interrupted run has collected counts
        selfplay.write(part, lm, text, data_root(spec.data), max(1, spec.each // 3) if held else spec.each, held=held,
                       max_tokens=spec.max_tokens, seed=spec.seed, live=8, mode=Mode(spec.temperature, 1.0), longest=800,
                       room=spec.max_tokens)
        part.rename(path)
    samples = [s for s in selfplay.read(path, lm.vocab.size) if s.output_ids]
    if not samples:
        raise ValueError(f"text is {str(path)!r}: no sample in it")
    return samples


@dataclass(frozen=True, eq=False)
class Lessons:
    """The target's text, answer after answer. state_NH: before each token, as sessions give them; token_N: what was written
    there; end_N: where the row's answer ends."""
    state_NH: Tensor
    token_N: Tensor
    end_N: Tensor

    @staticmethod
    def of(lm: LM, samples: Sequence[Sample], prompts: bool = False) -> Lessons:
        """prompts: of all tokens but a prompt's first, else of the answers alone."""
        state, token, size = list[Tensor](), list[int](), list[int]()
        for s in samples:
            first, ids = 1 if prompts else len(s.prompt_ids), (*s.prompt_ids, *s.output_ids)
            state.append(states(lm, ids)[first - 1:])
            token += ids[first:]
            size.append(len(ids) - first)
        sizes = torch.tensor(size)
        return Lessons(torch.cat(state), torch.tensor(token), sizes.cumsum(0).repeat_interleave(sizes))

    def ahead(self, n: int) -> Tensor:
        """Rows whose answer goes on for n tokens behind their own."""
        at_N = torch.arange(len(self.token_N))
        return at_N[at_N + n < self.end_N]


def states(lm: LM, ids: Sequence[int]) -> Tensor:
    """After each of these tokens but the last, fp32. Raises ValueError where the target shows none."""
    session = lm.open(ids)
    hidden_NH = run([session.prefill(Want(law=Reads.NOTHING, hidden=True, prompt=True))])[0].hidden_NH
    session.close()
    if hidden_NH is None:
        raise ValueError("target shows no hidden states: nothing can be trained on them")
    return hidden_NH.float()
