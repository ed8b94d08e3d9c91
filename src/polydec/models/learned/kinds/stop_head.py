"""A small head on a draft model's hidden states: how likely is it that the token just read will be accepted?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, silu

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import StopHeadFields

KIND = artefact.ArtefactKind("stop-head", "head", "head.safetensors", "probe --recipe stop-head")


@dataclass(frozen=True, eq=False)
class StopHead:
    """x + silu(W x + b) for each block (weight [H, H], bias [H]), then two numbers (out: weight [2, H], bias [2]), whose
    softmax is (rejected, accepted). Arithmetic is fp32.

    States come as sessions give them, before the model's final norm, and are divided by their root mean square first.
    """

    called: ClassVar[str] = "a stop head"
    kind: ClassVar[str] = "stop-head"
    made_by: ClassVar[str] = KIND.training_command

    blocks: tuple[tuple[Tensor, Tensor], ...]
    out: tuple[Tensor, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a draft model.

        Args:
            target: The target; not read.
            draft: The draft model, whose states it reads. None: nothing is checked.

        Raises:
            FileError: The draft model's states have another width.
        """
        if draft is not None:
            artefact.require_width(draft, self.width, "stop heads", "draft")

    @property
    def width(self) -> int:
        return self.out[0].shape[1]

    def stop_logits(self, hidden_NH: Tensor) -> Tensor:
        """[N, 2]. Raises FileError where the states are not of the head's width."""
        # Compared here as well: a caller need not have called `fit`.
        if hidden_NH.shape[-1] != self.width:
            raise FileError(
                f"head was trained for states of width {self.width}: this draft's have {hidden_NH.shape[-1]}"
            )
        x = hidden_NH.float()
        x = x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        for weight, bias in self.blocks:
            x = x + silu(linear(x, weight, bias))
        return linear(x, *self.out)

    def success_chance(self, hidden_H: Tensor) -> float:
        """Of one token, from the state after it."""
        return float(self.stop_logits(hidden_H[None]).softmax(-1)[0, 1])


def new_stop_head(width: int, depth: int, tied: bool, seed: int) -> StopHead:
    """Make a head to train, which says 1/2 of everything.

    Args:
        width: Width H of the draft model's states.
        depth: Number of blocks, 0 or more.
        tied: Whether one block is applied `depth` times; else each has weights of its own.
        seed: Seed of the blocks' weights; the last layer begins as zeros.

    Returns:
        The head.
    """
    g = torch.Generator().manual_seed(seed)
    # Half the usual size, so a deep stack begins near the identity.
    draw = lambda: (torch.randn(width, width, generator=g) * 0.5 / width**0.5, torch.zeros(width))  # noqa: E731
    # The same pair of tensors each time, which `save` recognises.
    if tied:
        blocks = (draw(),) * depth
    else:
        blocks = tuple(draw() for _ in range(depth))
    return StopHead(blocks, (torch.zeros(2, width), torch.zeros(2)))


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[StopHead, ...]:
    """Make a random one for tests.

    Args:
        vocab: Not read: it reads states.
        width: Width of the target's states; not read.
        draft_width: Width of the draft model's states, which it reads; at least 4.

    Returns:
        One head of two blocks.
    """
    out = torch.tensor([[0.5, -1.0, 0.2, 0.0], [-0.5, 1.0, 0.1, 0.0]])
    return (
        StopHead(
            new_stop_head(draft_width, 2, False, 3).blocks,
            (pad(out, (0, draft_width - 4)), torch.tensor([-0.5, 0.5])),
        ),
    )


def save(path: str | Path, head: StopHead, about: Mapping[str, Any]) -> None:
    """Write head.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        head: The head. Blocks that are one object are written once.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    # By identity, not by equal numbers: trained blocks could be equal by chance only.
    tied = len(head.blocks) > 1 and all(b is head.blocks[0] for b in head.blocks)
    tensors = {"out.weight": head.out[0], "out.bias": head.out[1]}
    for i, (weight, bias) in enumerate(head.blocks[:1] if tied else head.blocks):
        tensors |= {f"blocks.{i}.weight": weight, f"blocks.{i}.bias": bias}
    artefact.save_artefact(
        path,
        KIND,
        {k: v.float() for k, v in tensors.items()},
        {**about, "width": head.width, "depth": len(head.blocks), "tied": tied},
    )


def load(path: str | Path | None) -> StopHead:
    """The head in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    if path is None:
        raise FileError(
            "head is none: name the directory of a stop head (`polydec train probe --recipe stop-head` makes one)"
        )
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(StopHeadFields, config, artefact.CONFIG)
        # A tied head has one block in its file, which is repeated here.
        single = tuple(
            artefact.read_float_layer(t, KIND, f"blocks.{i}", c.width, c.width)
            for i in range(min(c.depth, 1) if c.tied else c.depth)
        )
        out = artefact.read_float_layer(t, KIND, "out", 2, c.width)
        return StopHead(single * c.depth if c.tied else single, out)
