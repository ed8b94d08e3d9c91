"""Vectors in a prompt: what enters the first layer in the place of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.models.nets.grid_positions import ImageGrid


@dataclass(frozen=True, eq=False)
class Soft:
    """Vectors among the ids of a prompt.

    Attributes:
        vectors_KD: The vectors, ``[k, width]``: k of them enter the first layer where they stand.
        stands_for: Ids, as many as it takes, which everything sees in their place that reads words
            (drafters, penalties, constraints, the echo of a prompt); None: it sees nothing there.
        grid: Rows and columns of an image, of which they are the cells, row by row, for a model that
            tells where they stand in it (M-RoPE). None: they stand one after another as words do.
        kept: Of an image of which some vectors were left out the cells that the others are, ascending;
            of a model that tells no rows and columns, its grid is one row. None: none were left out.
        adapter: Under which they run through the network (models/nets/gated.py). None: as tokens do.
    """

    vectors_KD: Tensor
    stands_for: Sequence[int] | None = None
    grid: tuple[int, int] | None = None
    kept: tuple[int, ...] | None = None
    adapter: Any = None


class SoftToken(int):
    """An id after the vocabulary, made of the vector that it stands for.

    Equal vectors have equal ids, so prompts of vectors share what was computed as those of tokens
    do.
    """

    state_H: Tensor
    grid: tuple[int, int] | None = None  # of the image whose first vector it is
    kept: tuple[int, ...] | None = None  # of the same image, as `Soft` has it
    adapter: Any = None  # under which it runs, as `Soft` has it


def state_of(token: int) -> Tensor | None:
    """The vector that an id stands for; None: it is a token."""
    return getattr(token, "state_H", None)


def adapter_of(token: int) -> Any:
    """The adapter under which an id runs through the network; None: it has none."""
    return getattr(token, "adapter", None)


def soft_prompt_surplus(prompt: object) -> int:
    """How many more positions the vectors of a prompt take than the ids that stand for them, at
    least 0."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        parts = prompt
    else:
        parts = ()
    return max(
        0, sum(len(x.vectors_KD) - len(x.stands_for or ()) for x in parts if isinstance(x, Soft))
    )


def last_image_vectors(vectors: Mapping[int, Tensor], count: int, who: str) -> Tensor | None:
    """The vectors of the last image of a text.

    Args:
        vectors: What stands in the text in the place of tokens, by its place (`Session.text_vectors`).
        count: Vectors that an image must have.
        who: What was trained for so many, as a message calls it.

    Returns:
        Shape ``[count, H]``; None: the text has no vectors.

    Raises:
        RequestError: The last run of vectors is no whole number of such images.
    """
    if not vectors:
        return None
    # An image stands in a run of places; the last run is the last image's.
    last = max(vectors)
    first = last
    while first - 1 in vectors:
        first -= 1
    have = last + 1 - first
    # Images that touch are of one size: the last one's vectors are the last ones.
    if have % count:
        raise RequestError(
            f"the last image has {have} vectors: {who} was trained for {count}, one a patch, so give an image of its size, "
            "and no press of images"
        )
    return torch.stack([vectors[at] for at in range(last + 1 - count, last + 1)])


def image_grids(text: Sequence[int], *, whole: bool = True) -> tuple[ImageGrid, ...]:
    """The images of a text that do not stand in it as as many words would, in order.

    Args:
        text: Ids, of which some stand for vectors.
        whole: Whether images count of which no vector was left out: for a model that tells rows and
            columns. Default True.

    Returns:
        Where their vectors stand.
    """
    out = list[ImageGrid]()
    for at, token in enumerate(text):
        grid: tuple[int, int] | None = getattr(token, "grid", None)
        if grid is None:
            continue
        kept: tuple[int, ...] | None = getattr(token, "kept", None)
        if whole or kept is not None:
            rows, columns = grid
            saved = out[-1].saved_behind if out else 0
            out.append(ImageGrid(at, rows, columns, saved, kept))
    return tuple(out)


def make_soft_tokens(
    vectors_KD: Tensor,
    size: int,
    width: int,
    who: str,
    grid: tuple[int, int] | None = None,
    kept: tuple[int, ...] | None = None,
    adapter: Any = None,
) -> tuple[SoftToken, ...]:
    """Make ids for vectors.

    Args:
        vectors_KD: The vectors, ``[k, width]`` floating-point numbers, k at least 1.
        size: Size of the vocabulary; ids begin there.
        width: Size of the model's embeddings.
        who: What messages call the prompt.
        grid: As `Soft` has it. Default None.
        kept: The same. Default None.
        adapter: The same. Default None.

    Returns:
        One id a vector, which carries it.

    Raises:
        RequestError: The vectors have another form, a number that is not finite, or are not as many
            as the grid has cells.
    """
    if not torch.is_tensor(vectors_KD) or not vectors_KD.is_floating_point():
        raise RequestError(f"{who} holds vectors that are no tensor of floating-point numbers")
    if vectors_KD.ndim != 2 or not len(vectors_KD) or vectors_KD.shape[1] != width:
        raise RequestError(
            f"{who} holds vectors of shape {tuple(vectors_KD.shape)}: they must be (k, {width}), k at least 1"
        )
    # In one number type, so that equal vectors have equal bytes.
    rows = vectors_KD.detach().to("cpu", torch.float32)
    if not rows.isfinite().all():
        raise RequestError(f"{who} holds vectors with a number that is NaN or infinite")
    # What follows the image goes on by its rows and columns.
    if grid is not None and kept is None and grid[0] * grid[1] != len(rows):
        raise RequestError(
            f"{who} holds {len(rows)} vectors in a grid of {grid[0]} x {grid[1]}: there must be one for each cell"
        )
    cells = range(len(rows)) if kept is None else kept
    _check_kept_cells(cells, len(rows), grid, who)
    out = list[SoftToken]()
    for at, row in zip(cells, rows, strict=True):
        state_H = row.clone()
        # Where a cell stands in its image is part of what it is.
        cell = b"" if grid is None else f"{at} of {grid[0]} x {grid[1]}".encode()
        # And so is that it runs otherwise than the same vector alone would.
        if adapter is not None:
            cell += b" adapted"
        # 7 bytes of a hash: equal vectors get equal ids, and an id fits in 64 bits with the
        # vocabulary's size added.
        told = blake2b(state_H.numpy().tobytes() + cell, digest_size=7).digest()
        out.append(SoftToken(size + int.from_bytes(told)))
        out[-1].state_H = state_H
        out[-1].adapter = adapter
    # The first cell tells where the image begins.
    if grid is not None:
        out[0].grid = grid
        out[0].kept = kept
    return tuple(out)


def _check_kept_cells(
    cells: Sequence[int], count: int, grid: tuple[int, int] | None, who: str
) -> None:
    """Raise RequestError where cells are not as many as vectors, not ascending, or outside their
    grid."""
    # Without a grid each vector is a cell.
    most = count if grid is None else grid[0] * grid[1]
    ascending = all(a < b for a, b in pairwise(cells))
    if len(cells) != count or not ascending or cells[0] < 0 or cells[-1] >= most:
        raise RequestError(
            f"{who} holds {count} vectors at {len(cells)} cells of an image of {most}: cells must ascend, and be as many"
        )
