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
    """Each head once, over the rows of all queries to it."""
    out = [(torch.empty(0), torch.empty(0))] * len(queries)
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
    """Heads to train, which pass the state on as it is; scale: of a random part beside that."""
    g = torch.Generator().manual_seed(seed)
    out = list[Head]()
    for k in range(count):
        size = width * (k + 2 if reads else 1)
        noise, skip = torch.randn(2, width, size, generator=g) * scale / width**0.5
        out.append((noise, torch.zeros(width), skip + torch.eye(width, size)))
    return out


def new_head_blocks(width: int, count: int, seed: int, scale: float = 0.0) -> list[Block]:
    """Further blocks of a head to train, which change nothing yet (or as much as `scale` says)."""
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(width, width, generator=g) * scale / width**0.5, torch.zeros(width))
        for _ in range(count)
    ]


def named_head(name: str, head: Head) -> dict[str, Tensor]:
    """A head's tensors as a file has them."""
    return {
        name + part: t.float() for part, t in zip(("weight", "bias", "skip"), head, strict=True)
    }


def read_head(
    t: Mapping[str, Tensor], kind: artefact.ArtefactKind, name: str, width: int, inputs: int
) -> Head:
    """The same from the file. Raises FileError where it does not have them."""
    shapes = {"weight": (width, inputs), "bias": (width,), "skip": (width, inputs)}
    weight, bias, skip = (
        artefact.read_artefact_tensor(t, kind, name + part, shape).float()
        for part, shape in shapes.items()
    )
    return weight, bias, skip
