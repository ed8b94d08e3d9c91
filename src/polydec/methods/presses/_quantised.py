"""Presses that keep keys and values in few bits, and correct for the rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.methods.presses._integers import (
    BITS,
    PackedIntegers,
    quantise_to_integers,
    stack_packed_integers,
)
from polydec.models.nets.press import PressRounding

# Loops of the power iteration.
LOOPS = 3


@dataclass(frozen=True, slots=True)
class QuantisedBlockHalf:
    """A block's keys, or its values.

    Attributes:
        integers: Rounded numbers. Keys are rounded along the tokens of a channel, shape
            ``[kv heads, head, block]``; values along the channels of a token, shape
            ``[block, kv heads * head]``.
        where: Places of the outliers in each such vector; None: there are none.
        what: Outliers as they were, float16; None: there are none.
        left: Directions that hold most of the rounding error, shape ``[kv heads, block, rank]``;
            None: none.
        right: Their coefficients, shape ``[kv heads, head, rank]``; None: none.
    """

    integers: PackedIntegers
    where: Tensor | None
    what: Tensor | None
    left: Tensor | None
    right: Tensor | None

    @property
    def nbytes(self) -> int:
        rest = (self.where, self.what, self.left, self.right)
        return self.integers.nbytes + sum(t.nbytes for t in rest if t is not None)


@dataclass(frozen=True, slots=True)
class QuantisedBlock:
    """Keys and values of a block.

    Attributes:
        keys: The keys; None where `whole` is set.
        values: The values; None where `whole` is set.
        whole: Both as they are, shape ``[2, kv heads, block, head]``; None where they are rounded.
    """

    keys: QuantisedBlockHalf | None
    values: QuantisedBlockHalf | None
    whole: Tensor | None = None

    @property
    def nbytes(self) -> int:
        parts = (self.keys, self.values, self.whole)
        return sum(x.nbytes for x in parts if x is not None)


@dataclass(frozen=True)
class QuantisedPress:
    """Keeps all entries in few bits (GEAR): keys rounded by channel, values by token.

    Attributes:
        called: Name of the press.
        block: Entries that are packed at once.
        bits: Bits of a number: 2, 4 or 8.
        group: Numbers that share a scale. 0: those of a channel's block, or of a token.
        rank: Rank of the low-rank part that is added for the rounding error. 0: none.
        outliers: Share of each channel's (token's) numbers that is kept as it is, 0 to 1; half of
            it the largest and half the smallest.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where outliers are 1 or the rank is full (as many as a block has
    entries, or a head dimensions).
    """

    unexercised: ClassVar[Mapping[str, str]] = {"dropped": "every entry stays, in fewer bits"}
    called: str
    block: int
    bits: int
    group: int = 0
    rank: int = 0
    outliers: float = 0.0
    asks = False
    lasting = True

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise RequestError(f"bits is {self.bits}: it must be 2, 4 or 8")

    @property
    def rounding(self) -> PressRounding | None:
        if self.rank or self.outliers:
            return None
        return PressRounding(self.bits, self.group)

    def kept_size(self, k: int) -> int:
        return self.block

    def pack_block(
        self, k: int, kv: Tensor, behind: Tensor | None, before: object
    ) -> QuantisedBlock:
        """Round a block, with its outliers and the main directions of the error.

        Args:
            k: Number of the block, counted from the start of the text.
            kv: Keys and values of the block in one layer, shape ``[2, kv heads, block, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None for a press that does not ask for them.
            before: Not needed.
        """
        # Nothing would be lost: the block stays as it is.
        if self.outliers >= 1.0 or self.rank >= min(kv.shape[-2:]):
            return QuantisedBlock(None, None, kv.clone())
        if kv.dtype != torch.float64:
            kv = kv.float()
        keys, values = kv
        return QuantisedBlock(
            self._half(keys, keys.transpose(-1, -2), lambda x: x.transpose(-1, -2)),
            self._half(values, _by_token(values), lambda x: _by_head(x, len(values))),
        )

    def _half(
        self, exact: Tensor, x: Tensor, back: Callable[[Tensor], Tensor]
    ) -> QuantisedBlockHalf:
        """Round a half of a block.

        Args:
            exact: The numbers, shape ``[kv heads, block, head]``.
            x: The same numbers as vectors to round.
            back: Turns such vectors into the shape of `exact`.
        """
        where = None
        what = None
        clean = x
        # Outliers are set aside and replaced by the mean, so that they do not widen the range of
        # the codes.
        if count := floor(self.outliers * x.shape[-1] / 2):
            where = torch.cat(
                [x.topk(count, -1).indices, x.topk(count, -1, largest=False).indices], -1
            )
            what = x.gather(-1, where).half()
            clean = x.scatter(-1, where, x.mean(-1, keepdim=True).expand(where.shape))
        # The backbone: few bits for all that is no outlier.
        integers = quantise_to_integers(clean, self.bits, self.group)
        if where is not None:
            where = where.to(torch.uint8 if x.shape[-1] <= 256 else torch.int16)
        half = QuantisedBlockHalf(integers, where, what, None, None)
        if not self.rank:
            return half
        # The error of what is read back, with outliers in place, in its main directions.
        left, right = low_rank_factors(exact - back(_read([half])[0]).to(exact.dtype), self.rank)
        return QuantisedBlockHalf(integers, where, what, left.half(), right.half())

    def fill_blocks(self, blocks: Sequence[QuantisedBlock], into: Tensor) -> None:
        """Read the blocks back, and add the low-rank part of the error.

        Args:
            blocks: Packed blocks, in order of the text.
            into: Receives their keys and values side by side, shape
                ``[2, kv heads, entries, head]``.
        """
        # A view of `into` by blocks, [2, n, kv heads, block, head].
        places = into.unflatten(-2, (len(blocks), -1)).transpose(1, 2)
        if blocks[0].whole is not None:
            places.copy_(torch.stack([b.whole for b in blocks if b.whole is not None], 1))
            return
        keys = [b.keys for b in blocks if b.keys is not None]
        values = [b.values for b in blocks if b.values is not None]
        places[0].copy_(_read(keys).transpose(-1, -2))
        places[1].copy_(_by_head(_read(values), into.shape[1]))
        # The low-rank part is added in place, to keys and to values.
        for which, halves in enumerate((keys, values)):
            if (made := _lost(halves)) is not None:
                places[which].add_(made)


def _read(halves: Sequence[QuantisedBlockHalf]) -> Tensor:
    """What was rounded, with outliers where they belong, [n, ...]."""
    x = stack_packed_integers([h.integers for h in halves]).read_numbers()
    if halves[0].where is None:
        return x
    where = torch.stack([h.where for h in halves if h.where is not None]).long()
    what = torch.stack([h.what for h in halves if h.what is not None])
    return x.scatter_(-1, where, what.float())


def _lost(halves: Sequence[QuantisedBlockHalf]) -> Tensor | None:
    """What the directions add, [n, kv heads, block, head]."""
    if halves[0].left is None:
        return None
    left = torch.stack([h.left for h in halves if h.left is not None])
    right = torch.stack([h.right for h in halves if h.right is not None])
    return left.float() @ right.float().transpose(-1, -2)


def _by_token(values: Tensor) -> Tensor:
    """Turn [kv heads, block, head] into [block, kv heads * head].

    A vector of one head is too short to have outliers.
    """
    return values.transpose(-3, -2).flatten(-2)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Turn [block, kv heads * head] back into [kv heads, block, head]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def low_rank_factors(error: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Approximate a matrix in the directions that hold most of it.

    A power iteration from a fixed start, so the result is the same at every call.

    Args:
        error: Matrices, shape ``[..., n, d]``.
        rank: Number of directions.

    Returns:
        Q, shape ``[..., n, rank]``, and P, shape ``[..., d, rank]``, with Q P' = Q Q' error.
    """
    right = _start(error.shape[-1], rank).to(error).expand(*error.shape[:-2], -1, -1)
    left = error @ right
    for loop in range(LOOPS):
        last = loop == LOOPS - 1
        # Only the last loop orthogonalises: then Q has orthonormal columns, and Q P' is a
        # projection.
        left = error @ (torch.linalg.qr(right)[0] if last else right)
        if last:
            left = torch.linalg.qr(left)[0]
        right = error.transpose(-1, -2) @ left
    return left, right


@lru_cache(maxsize=16)
def _start(size: int, rank: int) -> Tensor:
    return torch.randn(size, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
