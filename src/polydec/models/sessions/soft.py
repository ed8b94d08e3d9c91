"""Vectors in a prompt: what enters the first layer in the place of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from polydec.base.errors import RequestError


@dataclass(frozen=True, eq=False)
class Soft:
    """Vectors among the ids of a prompt.

    Attributes:
        vectors_KD: The vectors, ``[k, width]``: k of them enter the first layer where they stand.
        stands_for: Ids, as many as it takes, which everything sees in their place that reads words
            (drafters, penalties, constraints, the echo of a prompt); None: it sees nothing there.
    """

    vectors_KD: Tensor
    stands_for: Sequence[int] | None = None


class SoftToken(int):
    """An id after the vocabulary, made of the vector that it stands for.

    Equal vectors have equal ids, so prompts of vectors share what was computed as those of tokens
    do.
    """

    state_H: Tensor


def state_of(token: int) -> Tensor | None:
    """The vector that an id stands for; None: it is a token."""
    return getattr(token, "state_H", None)


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


def make_soft_tokens(vectors_KD: Tensor, size: int, width: int, who: str) -> tuple[SoftToken, ...]:
    """Make ids for vectors.

    Args:
        vectors_KD: The vectors, ``[k, width]`` floating-point numbers, k at least 1.
        size: Size of the vocabulary; ids begin there.
        width: Size of the model's embeddings.
        who: What messages call the prompt.

    Returns:
        One id a vector, which carries it.

    Raises:
        RequestError: The vectors have another form, or a number that is not finite.
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
    out = list[SoftToken]()
    for row in rows:
        state_H = row.clone()
        # 7 bytes of a hash: equal vectors get equal ids, and an id fits in 64 bits with the
        # vocabulary's size added.
        told = blake2b(state_H.numpy().tobytes(), digest_size=7).digest()
        out.append(SoftToken(size + int.from_bytes(told)))
        out[-1].state_H = state_H
    return tuple(out)
