"""A head on a masked-diffusion model: how long an answer will be, by the first state of its prompt (RUM-SUNDAE)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import LengthHeadFields
from polydec.models.learned.kinds.joint import TOY

KIND = artefact.ArtefactKind("length-head", "length", "length.safetensors", "probe --recipe length")


@dataclass(frozen=True, eq=False)
class LengthHead:
    """A linear classifier over the lengths 0 to C - 1 of an answer without its end: weight [C, H] and bias [C]. It reads the
    first state of a prompt, over its root mean square. vocab: the target's. Arithmetic is fp32."""

    called: ClassVar[str] = "a head that foretells lengths"
    kind: ClassVar[str] = "length-head"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    out: tuple[Tensor, Tensor]
    vocab: TokenVocabulary

    @property
    def state_width(self) -> int:
        """Width of the states that it reads."""
        return self.out[0].shape[1]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve; it must be a masked-diffusion model.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The target is of another family, or its states have another width.
        """
        artefact.require_masked_model(target, self.vocab, self.state_width, self.called)

    def length_logits(self, state_NH: Tensor) -> Tensor:
        """Of first states of prompts how likely each length is, before the softmax, ``[N, C]``."""
        # States before the final norm differ much in size.
        x = state_NH.float()
        x = x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        return linear(x, *self.out)

    def likeliest_lengths(self, state_H: Tensor, count: int, most: int) -> list[int]:
        """The likeliest lengths of an answer.

        Args:
            state_H: First state of its prompt.
            count: How many lengths, at least 1; fewer where fewer are known.
            most: Tokens that there is room for.

        Returns:
            Lengths of 0 to `most`, the likeliest first.
        """
        # What there is no room for is not tried, however likely it is.
        logits_C = self.length_logits(state_H[None])[0][: most + 1]
        return logits_C.topk(min(count, len(logits_C))).indices.tolist()


def new_length_head(width: int, most: int, vocab: TokenVocabulary) -> LengthHead:
    """Make one to train, to which all lengths are equally likely.

    Args:
        width: Width H of the target's states.
        most: Longest answer that it can foretell.
        vocab: The target's vocabulary.

    Returns:
        The head.
    """
    return LengthHead((torch.zeros(most + 1, width), torch.zeros(most + 1)), vocab)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[LengthHead, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        Heads of lengths of 0 to 8: one for states of this width, and one for those of a toy canvas.
    """
    g = torch.Generator().manual_seed(7)
    return tuple(
        LengthHead((torch.randn(9, w, generator=g), torch.randn(9, generator=g)), vocab)
        for w in (width, TOY)
    )


def save(path: str | Path, head: LengthHead, about: Mapping[str, Any]) -> None:
    """Write length.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        head: The head.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    weight, bias = head.out
    artefact.save_artefact(
        path,
        KIND,
        {"out.weight": weight.float(), "out.bias": bias.float()},
        {
            **about,
            "width": head.state_width,
            "longest": len(bias) - 1,
            "vocab_size": head.vocab.size,
            "tokenizer": head.vocab.tokenizer,
        },
    )


def load(path: str | Path) -> LengthHead:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, t = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(LengthHeadFields, config, artefact.CONFIG)
        return LengthHead(
            artefact.read_float_layer(t, KIND, "out", c.longest + 1, c.width),
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer),
        )
