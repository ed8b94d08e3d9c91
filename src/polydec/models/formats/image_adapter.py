"""What an adapter has for images alone: matrices for their rows, a ladder of queries for the tower, and a
projector.

Source: Arcana, "Improving Multi-modal Large Language Model through Boosting Vision Capabilities", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.base.errors import FileError

TEXT = "text."
IMAGE = "image."
LADDER = "ladder."
PROJECTOR = "projector."
"""How the names of its tensors begin: pairs for rows of words, pairs for rows of images, the ladder, and
the projector, whose tensors keep that name."""


@dataclass(frozen=True, eq=False)
class ImageAdapter:
    """What images alone go through.

    Attributes:
        pairs: By the name of a weight of the language model the thin matrices ``[R, inputs]`` and
            ``[outputs, R]``, whose product is added at rows of images to what the adapted weight
            gives. Empty: these rows run as those of words do.
        ladder: Tensors of the tower's ladder. Empty: it has none.
        projector: Tensors that take the place of the projector's, by the names of
            formats/llava.py. Empty: it stays.
    """

    pairs: Mapping[str, tuple[Tensor, Tensor]]
    ladder: Mapping[str, Tensor]
    projector: Mapping[str, Tensor]


def part_by_beginning(tensors: Mapping[str, Tensor], where: str) -> dict[str, dict[str, Tensor]]:
    """Part tensors by how their names begin.

    Args:
        tensors: The tensors of a file.
        where: What messages call it.

    Returns:
        By each of the four beginnings its tensors, whose names lack it.

    Raises:
        FileError: A name begins otherwise.
    """
    out: dict[str, dict[str, Tensor]] = {at: {} for at in (TEXT, IMAGE, LADDER, PROJECTOR)}
    # Every tensor belongs to one part, so none is read as another or left out unseen.
    for name in tensors:
        begins = next((at for at in out if name.startswith(at)), None)
        if begins is None:
            raise FileError(
                f"{where} has {name!r:.120}: names begin with {', '.join(out)} and nothing else"
            )
        out[begins][name.removeprefix(begins)] = tensors[name]
    return out


def join_pairs(
    where: str,
    name: str,
    added: tuple[Tensor, Tensor] | None,
    taken: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """One pair whose product is the product of a pair less that of another one.

    Args:
        where: What messages call the file.
        name: The weight, likewise.
        added: The first pair, ``[R, inputs]`` and ``[outputs, R]``. None: nothing.
        taken: The second one.

    Returns:
        The pair, of as many ranks as both have.

    Raises:
        FileError: The two are of different weights.
    """
    # Ranks add up: the difference of two products is one product of both, side by side.
    signed = [(pair, sign) for pair, sign in ((added, 1.0), (taken, -1.0)) if pair is not None]
    down = [pair[0].float() for pair, _ in signed]
    up = [sign * pair[1].float() for pair, sign in signed]
    if len({a.shape[1] for a in down}) > 1 or len({b.shape[0] for b in up}) > 1:
        raise FileError(
            f"{where} has pairs of different sizes for {name!r:.120}: rows of words and of images go through one weight"
        )
    return torch.cat(down), torch.cat(up, 1)
