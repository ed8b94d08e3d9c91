"""A process reward model on a model's own states: how likely is it that what stands so far leads to a right answer?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import StepRewardFields

KIND = artefact.ArtefactKind("prm", "prm", "prm.safetensors", "probe --recipe prm")


@dataclass(frozen=True, eq=False)
class StepReward:
    """sigmoid(out silu(inner x)), x: the state behind the last token of a step, divided by its root mean square. inner: weight
    [I, H], bias [I]; out: weight [1, I], bias [1]; vocab: the target's. Arithmetic is fp32.

    States come as sessions give them, before the model's final norm.
    """

    called: ClassVar[str] = "a process reward model"
    kind: ClassVar[str] = "prm"
    made_by: ClassVar[str] = KIND.training_command

    inner: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    vocab: TokenVocabulary

    @property
    def width(self) -> int:
        return self.inner[0].shape[1]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width.
        """
        target.vocab.require_same(self.vocab, "the target of the process reward model")
        artefact.require_width(target, self.width, "process reward models")

    def step_logits(self, hidden_NH: Tensor) -> Tensor:
        """[N]."""
        # States before the final norm vary much in length, which says nothing of a step.
        x = hidden_NH.float()
        x = x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        return linear(silu(linear(x, *self.inner)), *self.out)[:, 0]

    def success_chance(self, hidden_H: Tensor) -> float:
        """0 to 1, of one beginning of a text."""
        return float(self.step_logits(hidden_H[None]).sigmoid()[0])


def new_step_reward(width: int, inner: int, vocab: TokenVocabulary, seed: int) -> StepReward:
    """Make one to train, which says 1/2 of everything.

    Args:
        width: Width H of the target's states.
        inner: Number I of inner units.
        vocab: The target's vocabulary, which the artefact is made for.
        seed: Seed of the inner weights; the outer ones begin as zeros.

    Returns:
        The reward model.
    """
    g = torch.Generator().manual_seed(seed)
    # Outer weights of zeros: the first gradient then decides the direction, not the noise.
    return StepReward(
        (torch.randn(inner, width, generator=g) / width**0.5, torch.zeros(inner)),
        (torch.zeros(1, inner), torch.zeros(1)),
        vocab,
    )


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[StepReward, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One process reward model with eight inner units.
    """
    g = torch.Generator().manual_seed(7)
    reward = new_step_reward(width, 8, vocab, 7)
    return (StepReward(reward.inner, (torch.randn(1, 8, generator=g), reward.out[1]), vocab),)


def save(
    path: str | Path,
    reward: StepReward,
    about: Mapping[str, Any],
    kind: artefact.ArtefactKind = KIND,
) -> None:
    """Write the file of tensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        reward: The reward model.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.
        kind: Kind of what has this form; it names the file. Default a process reward model, whose
            file is prm.safetensors.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    names = ("inner.weight", "inner.bias", "out.weight", "out.bias")
    tensors = dict(zip(names, (*reward.inner, *reward.out), strict=True))
    artefact.save_artefact(
        path,
        kind,
        {k: v.float() for k, v in tensors.items()},
        {
            **about,
            "width": reward.width,
            "inner": len(reward.inner[1]),
            "vocab_size": reward.vocab.size,
            "tokenizer": reward.vocab.tokenizer,
        },
    )


def load(path: str | Path, kind: artefact.ArtefactKind = KIND) -> StepReward:
    """Load what `save` wrote into a directory.

    Args:
        path: The directory.
        kind: Kind of what has this form. Default a process reward model.

    Returns:
        The reward model in fp32.

    Raises:
        FileError: There is none, or it is damaged.
    """
    config, t = artefact.read_artefact_files(edge.at_home(path), kind)
    with artefact.report_artefact_damage(path, kind):
        c = edge.validate_record(StepRewardFields, config, artefact.CONFIG)
        return StepReward(
            artefact.read_float_layer(t, kind, "inner", c.inner, c.width),
            artefact.read_float_layer(t, kind, "out", 1, c.inner),
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer),
        )
