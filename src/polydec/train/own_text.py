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
from polydec.models.lm import LM
from polydec.models.text import Text
from polydec.train import selfplay
from polydec.train.data import data_root
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


def gather(spec: Gathering, lm: LM, text: Text, held: bool) -> list[Sample]:
    """The target's answers at the temperature, kept in out/text.jsonl (held-out prompts: held.jsonl, a third as many)."""
    path = Path(spec.text) if spec.text and not held else Path(spec.out) / ("held.jsonl" if held else "text.jsonl")
    if not path.exists():
        asked: list[tuple[str, tuple[int, ...], Mode]] = []
        for kind, user in selfplay.prompts(data_root(spec.data), max(1, spec.each // 3) if held else spec.each, held=held,
                                           seed=spec.seed, longest=800):
            ids = text.chat([{"role": "user", "content": user}]) if text.has_chat else text.encode(user)
            if len(ids) + spec.max_tokens <= lm.network.context:
                asked.append((kind, ids, Mode(spec.temperature, 1.0)))
        part = path.with_name(f"{path.stem}.part.jsonl")          # what an interrupted run has collected counts
        selfplay.collect(part, lm, asked, max_tokens=spec.max_tokens, seed=spec.seed, live=8)
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
