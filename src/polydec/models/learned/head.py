"""One draft head on a target's state, and what all kinds of them share: how they begin, run in batches and stand in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from polydec.models.learned import artefact

Head = tuple[Tensor, Tensor, Tensor]
"""weight [H, inputs], bias [H] and skip [H, inputs]: skip u + silu(weight u + bias) of inputs u."""
Block = tuple[Tensor, Tensor]
"""weight [H, H] and bias [H] of a further block: x + silu(weight x + bias)."""
Step = tuple[int, Tensor, Tensor]
"""What a query of heads is: which head, what the nodes above leave [N, C], and the nodes' embeddings [N, H]."""


def run_heads_batched(
    step: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]], queries: Sequence[Step]
) -> list[tuple[Tensor, Tensor]]:
    """Run each head once, over the rows of all queries to it.

    Args:
        step: Runs head k on its index, on what the nodes above leave ``[N, C]``, and on the nodes'
            embeddings ``[N, H]``. It gives what is left to the nodes below, and the guessed states
            ``[N, H]``.
        queries: The queries, of any heads in any order.

    Returns:
        What `step` gives, split into one pair a query, in the order of the queries.
    """
    # Answers are filled in by index, since heads run in their own order.
    out = [(torch.empty(0), torch.empty(0))] * len(queries)
    # Queries of several texts to one head share a matrix product.
    for k in sorted({k for k, *_ in queries}):
        mine = [i for i, (head, *_) in enumerate(queries) if head == k]
        sizes = [len(queries[i][1]) for i in mine]
        both = step(
            k, torch.cat([queries[i][1] for i in mine]), torch.cat([queries[i][2] for i in mine])
        )
        for i, carry, state in zip(mine, both[0].split(sizes), both[1].split(sizes), strict=True):
            out[i] = carry, state
    return out


def new_draft_heads(
    width: int, count: int, reads: bool, seed: int, scale: float = 0.0
) -> list[Head]:
    """Make heads to train, which pass the state on as it is.

    Args:
        width: Width H of the target's states.
        count: Number of heads.
        reads: Whether head k reads the embeddings of its k + 1 tokens beside the state, (k + 2) H
            numbers, and not H.
        seed: Seed of the random part.
        scale: Size of the random part in `weight` and `skip`, before it is divided by the root of
            H. Default 0: none.

    Returns:
        The heads, the nearest token's first.
    """
    g = torch.Generator().manual_seed(seed)
    out = list[Head]()
    for k in range(count):
        # The state, and an embedding for each of the k + 1 tokens in between.
        size = width * (k + 2 if reads else 1)
        # The identity over the first H columns passes the state; columns of tokens begin near zero.
        noise, skip = torch.randn(2, width, size, generator=g) * scale / width**0.5
        out.append((noise, torch.zeros(width), skip + torch.eye(width, size)))
    return out


def new_head_blocks(width: int, count: int, seed: int, scale: float = 0.0) -> list[Block]:
    """Make further blocks of one head to train, which change nothing by default.

    Args:
        width: Width H of the states.
        count: Number of blocks.
        seed: Seed of the random part.
        scale: Size of the random weights, before they are divided by the root of H. Default 0: a
            block that leaves its input as it is.

    Returns:
        The blocks in the order in which they run.
    """
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(width, width, generator=g) * scale / width**0.5, torch.zeros(width))
        for _ in range(count)
    ]


def named_head(name: str, head: Head) -> dict[str, Tensor]:
    """Name the tensors of a head as a file has them.

    Args:
        name: What the names begin with, the dot at its end included.
        head: The head.

    Returns:
        The tensors in fp32, by `name` with "weight", "bias" or "skip" behind it.
    """
    return {
        name + part: t.float() for part, t in zip(("weight", "bias", "skip"), head, strict=True)
    }


def read_head(
    t: Mapping[str, Tensor], kind: artefact.ArtefactKind, name: str, width: int, inputs: int
) -> Head:
    """Read a head that `named_head` named.

    Args:
        t: The tensors of the file, by name.
        kind: Kind of artefact, for the sentence of an error.
        name: What the names begin with, the dot at its end included.
        width: Width H of the guessed states.
        inputs: Numbers that the head reads, a multiple of H.

    Returns:
        The head in fp32.

    Raises:
        FileError: A tensor is missing, damaged or of another shape.
    """
    shapes = {"weight": (width, inputs), "bias": (width,), "skip": (width, inputs)}
    weight, bias, skip = artefact.read_float_tensors(t, kind, shapes, name).values()
    return weight, bias, skip
