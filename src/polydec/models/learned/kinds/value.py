"""A value network: what the answer will be worth that a canvas with gaps leads to (SVDD-MC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv1d, linear, pad, silu

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import ValueFields

KIND = artefact.ArtefactKind("value", "value", "value.safetensors", "probe --recipe value")


@dataclass(frozen=True, eq=False)
class ValueNetwork:
    """out . mean over positions of silu(two of silu(one of the embeddings)): one, two: weight [W, W, 3] and bias [W] of
    convolutions over a position and its neighbours; embed_VW: what a token is, a gap being zeros; out: weight [1, W], bias [1].
    vocab: the model's. Arithmetic is fp32. It is told no time: the gaps say it."""

    called: ClassVar[str] = "a value network"
    kind: ClassVar[str] = "value"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    embed_VW: Tensor
    one: tuple[Tensor, Tensor]
    two: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    vocab: TokenVocabulary

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        target.vocab.require_same(self.vocab, "the target of the value network")

    def canvas_values(self, token_BT: Tensor, length_B: Tensor) -> Tensor:
        """Judge a batch of canvases.

        Args:
            token_BT: Tokens, shape ``[B, T]``; -1 at gaps and behind the end of a shorter canvas.
            length_B: Positions of each canvas, shape ``[B]``, at least 1.

        Returns:
            The value of each, shape ``[B]``.
        """
        # -1 cannot index the table: gaps look up row 0 and are set to zero afterwards.
        gap_BT = token_BT < 0
        x = self.embed_VW[token_BT.clamp(min=0)].masked_fill(gap_BT[..., None], 0.0)
        # Gaps inside the canvas count for the mean; what pads a shorter canvas does not.
        inside = torch.arange(token_BT.shape[1])[None] < length_B[:, None]
        x = x.transpose(1, 2)
        for weight, bias in (self.one, self.two):
            # Cut off after each convolution, so that padding never reaches a canvas through its
            # border.
            x = silu(conv1d(pad(x, (1, 1)), weight, bias)) * inside[:, None]
        mean = x.sum(-1) / length_B[:, None]
        return linear(mean, *self.out)[:, 0]

    def __call__(self, canvas: Sequence[int | None]) -> float:
        """Of one canvas, the prompt included."""
        token_T = torch.tensor([-1 if x is None else x for x in canvas])
        with torch.inference_mode():
            return float(self.canvas_values(token_T[None], torch.tensor([len(canvas)]))[0])


def new_value_network(vocab: TokenVocabulary, width: int, seed: int) -> ValueNetwork:
    """Make one to train, which says 0 of everything.

    Args:
        vocab: The model's vocabulary.
        width: Width W of the embeddings and of both convolutions.
        seed: Seed of the embeddings and convolutions; the last layer begins as zeros.

    Returns:
        The network.
    """
    g = torch.Generator().manual_seed(seed)

    def draw_tensors(*shape: int, over: int) -> Tensor:
        """Draw a tensor.

        Args:
            shape: Its shape.
            over: Numbers that it sums over, whose root divides it.

        Returns:
            The tensor.
        """
        return torch.randn(*shape, generator=g) / over**0.5

    return ValueNetwork(
        draw_tensors(vocab.size, width, over=1),
        (draw_tensors(width, width, 3, over=3 * width), torch.zeros(width)),
        (draw_tensors(width, width, 3, over=3 * width), torch.zeros(width)),
        (torch.zeros(1, width), torch.zeros(1)),
        vocab,
    )


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[ValueNetwork, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Not read: it reads tokens with a table of its own.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One network of width 8.
    """
    network = new_value_network(vocab, 8, 5)
    g = torch.Generator().manual_seed(5)
    out = torch.randn(1, 8, generator=g), network.out[1]
    return (ValueNetwork(network.embed_VW, network.one, network.two, out, vocab),)


def save(path: str | Path, net: ValueNetwork, about: Mapping[str, Any]) -> None:
    """Write value.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        net: The network.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {"embed": net.embed_VW}
    for name, (weight, bias) in (("one", net.one), ("two", net.two), ("out", net.out)):
        tensors |= {f"{name}.weight": weight, f"{name}.bias": bias}
    artefact.save_artefact(
        path,
        KIND,
        {k: v.float() for k, v in tensors.items()},
        {
            **about,
            "width": net.embed_VW.shape[1],
            "vocab_size": net.vocab.size,
            "tokenizer": net.vocab.tokenizer,
        },
    )


def load(path: str | Path) -> ValueNetwork:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, t = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(ValueFields, config, artefact.CONFIG)
        return ValueNetwork(
            artefact.read_float_tensor(t, KIND, "embed", c.vocab_size, c.width),
            artefact.read_float_layer(t, KIND, "one", c.width, c.width, 3),
            artefact.read_float_layer(t, KIND, "two", c.width, c.width, 3),
            artefact.read_float_layer(t, KIND, "out", 1, c.width),
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer),
        )
