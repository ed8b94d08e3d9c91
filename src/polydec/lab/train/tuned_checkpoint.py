"""A checkpoint that is trained further, by low-rank adapters or in all its weights."""

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
    """A checkpoint in training.

    Attributes:
        name: Name of the checkpoint that training begins with.
        source: Its files.
        network: What is trained.
        rank: Rank of its adapters; 0: the weights themselves are trained.
    """

    name: str
    source: CheckpointFiles
    network: TrainableLlama
    rank: int

    def save(self, path: Path) -> None:
        """Write an adapter as PEFT has it, or a complete checkpoint where there are no adapters.

        Both are names of models.
        """
        # An adapter is small, and names the checkpoint that it changes.
        if self.rank:
            lora.save_lora_adapters(path, self.network, self.name)
            return
        s = self.source
        sources.save_checkpoint(path, s.config, self.network.state_dict(), s.text, s.generation)


def start_tuned_checkpoint(name: str, rank: int, seed: int, context: int) -> TunedCheckpoint:
    """Begin to tune a checkpoint; its embeddings stay as they are.

    Args:
        name: Name or directory of the checkpoint.
        rank: Rank of the adapters, which add nothing yet; 0: all weights are trained.
        seed: Seed of the adapters.
        context: Positions that training reads.

    Returns:
        The checkpoint in training.

    Raises:
        RequestError: It is not of the plain Llama skeleton.
    """
    source = sources.open_source(name)
    require_family(AUTOREGRESSIVE, family_of_config(source.config), name)
    network = from_weights(source.config, source.weights, context)
    # Adapters freeze all other weights; else the embeddings, and with them a tied head, stay.
    if rank:
        lora.add_lora_adapters(network, rank, seed)
    else:
        network.requires_grad_(True)
        network.model.embed_tokens.requires_grad_(False)
    return TunedCheckpoint(name, source, network, rank)


class TunedTextSpec(TrainingTextSpec, Protocol):
    """The options that say which text a tuning wants; see SkippingSpec."""

    @property
    def target(self) -> str: ...
    @property
    def longest(self) -> int: ...


def tuning_text_samples(
    spec: TunedTextSpec, vocab: int
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """Answers to learn from, and others to measure on.

    The others are answers to held-out prompts, or every sixteenth of a given file.

    Args:
        spec: Options; without `text` the target writes the answers first.
        vocab: Tokens of the vocabulary.

    Returns:
        Samples to learn from, and samples to measure on.

    Raises:
        RequestError: There are too few samples.
    """
    out = Path(spec.out)
    # A file of one's own, or what the target writes here.
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
    # One sample to learn from and one to measure on are the least.
    if len(samples) < 2:
        raise RequestError(
            f"text is {spec.text!r}: it must hold two samples or more, one of them to measure on"
        )
    # Of a given file nobody knows which prompts are held out: every sixteenth is set aside.
    unseen = samples[::16]
    return [s for i, s in enumerate(samples) if i % 16], unseen


@dataclass(frozen=True, eq=False)
class PaddedTextRows:
    """Texts side by side, filled up at their ends.

    Attributes:
        token_BT: Token ids, shape ``[B, T]``.
        prompt_B: Tokens of each prompt, shape ``[B]``.
        length_B: Tokens of each text, shape ``[B]``.
    """

    token_BT: Tensor
    prompt_B: Tensor
    length_B: Tensor

    @staticmethod
    def of_samples(samples: Sequence[TrainingSample]) -> PaddedTextRows:
        """Lay out samples, prompt and answer joined."""
        texts = [(*s.prompt_ids, *s.output_ids) for s in samples]
        # Padding is token 0. Masks keep it out of all losses, causal attention out of the sight of
        # texts.
        longest = max(map(len, texts))
        return PaddedTextRows(
            torch.tensor([[*t, *[0] * (longest - len(t))] for t in texts]),
            torch.tensor([len(s.prompt_ids) for s in samples]),
            torch.tensor([len(t) for t in texts]),
        )

    @property
    def known_BT(self) -> Tensor:
        """Where there is a next token to learn: at all positions of a text except its last.

        Shape ``[B, T]``.
        """
        return torch.arange(self.token_BT.shape[1]) < self.length_B[:, None] - 1

    @property
    def writes_BT(self) -> Tensor:
        """Where the next token is one of the answer's, shape ``[B, T]``."""
        at_T = torch.arange(self.token_BT.shape[1])
        # The last token of the prompt predicts the first of the answer.
        return self.known_BT & (at_T >= self.prompt_B[:, None] - 1)


@torch.no_grad()
def answer_nats(
    network: TrainableLlama,
    samples: Sequence[TrainingSample],
    states: Callable[[PaddedTextRows], Tensor],
) -> float:
    """The mean negative log-likelihood of the answers' tokens.

    Args:
        network: Gives the head.
        samples: Prompts with answers.
        states: Gives states ready for the head, at all positions, shape ``[B, T, H]``.

    Returns:
        Nats a token.
    """
    total = 0.0
    count = 0
    for sample in samples:
        # One text at a time, so that none is padded.
        rows = PaddedTextRows.of_samples([sample])
        writes_BT = rows.writes_BT
        logits = network.token_logits(states(rows)[writes_BT])
        # The next token of each position; the one that wraps around is masked.
        label = rows.token_BT.roll(-1, 1)[writes_BT]
        total += float(F.cross_entropy(logits, label, reduction="sum"))
        count += len(label)
    return total / count
