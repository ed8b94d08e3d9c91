"""The dimensions of a head mixed by random signs and a Walsh-Hadamard transform, so that none of
them stands out when numbers are rounded."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor

ODD = 0x9E3779B1
"""Signs of the dimensions come from multiples of it (models/native/press.cpp has the same)."""


def apply_signed_hadamard(x: Tensor) -> Tensor:
    """Mix the last axis: each number times its sign, then an orthonormal Walsh-Hadamard transform.

    Where the axis is no power of two long, runs of the largest power of two that divides it are
    mixed, each by itself.

    Args:
        x: Vectors, shape ``[..., head]``.

    Returns:
        The mixed vectors, of the same shape; scalar products of two such vectors are those of the
        vectors.
    """
    return _walsh_hadamard(x * dimension_signs(x.shape[-1]).to(x))


def undo_signed_hadamard(x: Tensor) -> Tensor:
    """Give vectors back that `apply_signed_hadamard` mixed.

    Args:
        x: Mixed vectors, shape ``[..., head]``.

    Returns:
        The vectors, of the same shape.
    """
    return _walsh_hadamard(x) * dimension_signs(x.shape[-1]).to(x)


def _walsh_hadamard(x: Tensor) -> Tensor:
    """The transform is its own inverse."""
    size = x.shape[-1]
    run = size & -size  # the largest power of two that divides it
    half = 1
    while half < run:
        # Numbers that stand `half` apart become their sum and their difference.
        pairs = x.unflatten(-1, (-1, 2, half))
        first, second = pairs.unbind(-2)
        x = torch.stack([first + second, first - second], -2).flatten(-3)
        half *= 2
    return x * (1.0 / sqrt(run))


@lru_cache(maxsize=16)
def dimension_signs(size: int) -> Tensor:
    """Return the signs of a head's dimensions, the same for every head: 1 or -1, shape ``[size]``.

    They depend on nothing but the dimension, so that packed blocks mean the same everywhere.
    """
    bits = [(d * ODD & 0xFFFFFFFF).bit_count() & 1 for d in range(size)]
    return 1.0 - 2.0 * torch.tensor(bits, dtype=torch.float64)
