"""A checkpoint that is trained further, by low-rank adapters or in all its weights, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train import lora, selfplay
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.own_text import TrainingTextSpec, write_text
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.target import family_of_config, require_family
from polydec.methods.registry.family import AUTOREGRESSIVE
from polydec.models.sessions import checkpoint, sources
from polydec.models.sessions.sources import CheckpointFiles


@dataclass(frozen=True, eq=False)
class TunedCheckpoint:
    """name: of the checkpoint that training begins with; network: what is trained; rank: of its adapters (0: none, the weights
    themselves are trained)."""

    name: str
    source: CheckpointFiles
    network: TrainableLlama
    rank: int

    def save(self, path: Path) -> None:
        """Write an adapter as PEFT has it, or a whole checkpoint without adapters; either is a model's name."""
        if self.rank:
            lora.save_lora_adapters(path, self.network, self.name)
            return
        s = self.source
        sources.save_checkpoint(path, s.config, self.network.state_dict(), s.text, s.generation)


def start_tuned_checkpoint(name: str, rank: int, seed: int, context: int) -> TunedCheckpoint:
    """The checkpoint of this name with adapters that add nothing yet; its embeddings stay as they are. context: positions that
    training reads. Raises RequestError where it is not of the plain Llama skeleton."""
    source = sources.open_source(name)
    require_family(AUTOREGRESSIVE, family_of_config(source.config), name)
    network = from_weights(source.config, source.weights, context)
    if rank:
        lora.add_lora_adapters(network, rank, seed)
    else:
        network.requires_grad_(True)
        network.model.embed_tokens.requires_grad_(False)
    return TunedCheckpoint(name, source, network, rank)


class TunedTextSpec(TrainingTextSpec, Protocol):
    """See SkippingSpec."""

    @property
    def target(self) -> str: ...
    @property
    def longest(self) -> int: ...


def tuning_text_samples(
    spec: TunedTextSpec, vocab: int
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """Answers to learn from, and others to measure on: to held-out prompts, or every sixteenth of `text`."""
    out = Path(spec.out)
    if spec.text:
        path = Path(spec.text)
    else:
        path = out / "text.jsonl"
    if spec.text is None:
        write_text(
            checkpoint.load_bundle(spec.target),
            path,
            spec.data,
            spec.each,
            max_tokens=spec.max_tokens,
            seed=spec.seed,
        )
    samples = selfplay.read_fitting_samples(path, vocab, spec.longest)
    if spec.text is None:
        return samples, selfplay.read_fitting_samples(out / "held.jsonl", vocab, spec.longest)
    if len(samples) < 2:
        raise RequestError(
            f"text is {spec.text!r}: one sample is learned from, and one measured on"
        )
    unseen = samples[::16]
    return [s for i, s in enumerate(samples) if i % 16], unseen


@dataclass(frozen=True, eq=False)
class PaddedTextRows:
    """Texts side by side, filled up at their ends. token_BT; prompt_B, length_B: tokens of each prompt, and of each text."""

    token_BT: Tensor
    prompt_B: Tensor
    length_B: Tensor

    @staticmethod
    def of(samples: Sequence[TrainingSample]) -> PaddedTextRows:
        texts = [(*s.prompt_ids, *s.output_ids) for s in samples]
        longest = max(map(len, texts))
        return PaddedTextRows(
            torch.tensor([[*t, *[0] * (longest - len(t))] for t in texts]),
            torch.tensor([len(s.prompt_ids) for s in samples]),
            torch.tensor([len(t) for t in texts]),
        )

    @property
    def known_BT(self) -> Tensor:
        """Where there is a next token to learn: at all positions of a text but its last."""
        return torch.arange(self.token_BT.shape[1]) < self.length_B[:, None] - 1

    @property
    def writes_BT(self) -> Tensor:
        """Where the next token is one of the answer's."""
        at_T = torch.arange(self.token_BT.shape[1])
        return self.known_BT & (at_T >= self.prompt_B[:, None] - 1)


@torch.no_grad()
def answer_nats(
    network: TrainableLlama,
    samples: Sequence[TrainingSample],
    states: Callable[[PaddedTextRows], Tensor],
) -> float:
    """Mean of -log p of the answers' tokens, in nats. states: ready for the head, of all positions [B, T, H]."""
    total = 0.0
    count = 0
    for sample in samples:
        rows = PaddedTextRows.of([sample])
        writes_BT = rows.writes_BT
        logits = network.logits(states(rows)[writes_BT])
        label = rows.token_BT.roll(-1, 1)[writes_BT]
        total += float(F.cross_entropy(logits, label, reduction="sum"))
        count += len(label)
    return total / count
