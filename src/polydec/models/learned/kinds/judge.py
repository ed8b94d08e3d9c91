"""A linear probe on a target's states: is the token just read a right way to go on? (Judge decoding)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import JudgeFields
from polydec.models.learned.state_layer import rms_normalised

KIND = artefact.ArtefactKind("judge", "judge", "judge.safetensors", "probe --recipe judge")


@dataclass(frozen=True, eq=False)
class JudgeProbe:
    """weight_H and bias of a logistic regression on the target's state after a token, before the final norm and divided by its
    root mean square; vocab: the target's."""

    called: ClassVar[str] = "a judge"
    kind: ClassVar[str] = "judge"
    made_by: ClassVar[str] = KIND.training_command

    weight_H: Tensor
    bias: Tensor
    vocab: TokenVocabulary

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width.
        """
        target.vocab.require_same(self.vocab, "the target of the judge")
        artefact.require_width(target, len(self.weight_H), "the judge's weights")

    def judge_logits(self, state_NH: Tensor) -> Tensor:
        """Log odds that each token is right."""
        # Only the direction of a state counts: its length varies from token to token.
        return rms_normalised(state_NH) @ self.weight_H + self.bias

    def token_chance(self, state_H: Tensor) -> float:
        """Of one token, 0 to 1."""
        return float(self.judge_logits(state_H[None])[0].sigmoid())


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[JudgeProbe, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One judge.
    """
    g = torch.Generator().manual_seed(12)
    return (JudgeProbe(torch.randn(width, generator=g), torch.zeros(()), vocab),)


def save(path: str | Path, judge: JudgeProbe, about: Mapping[str, Any]) -> None:
    """Write judge.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        judge: The judge.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    artefact.save_artefact(
        path,
        KIND,
        {"weight": judge.weight_H.float(), "bias": judge.bias.float()},
        {
            **about,
            "width": len(judge.weight_H),
            "vocab_size": judge.vocab.size,
            "tokenizer": judge.vocab.tokenizer,
        },
    )


def load(path: str | Path) -> JudgeProbe:
    """The judge in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(JudgeFields, config, artefact.CONFIG)
        return JudgeProbe(
            artefact.read_float_tensor(t, KIND, "weight", c.width),
            artefact.read_float_tensor(t, KIND, "bias"),
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer),
        )
