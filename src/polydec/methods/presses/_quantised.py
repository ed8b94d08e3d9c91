"""Presses that keep keys and values in few bits, and correct for the rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import floor
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.methods.presses._hadamard import apply_signed_hadamard, undo_signed_hadamard
from polydec.methods.presses._integers import (
    BITS,
    PackedIntegers,
    quantise_to_integers,
    stack_packed_integers,
)
from polydec.models.nets.press import LowRankEntries, PressRounding

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


BlockHalf = QuantisedBlockHalf | Tensor
"""Of a half of which nothing is rounded the numbers, shape ``[kv heads, block, head]``."""


@dataclass(frozen=True, slots=True)
class QuantisedBlock:
    """Keys and values of a block.

    Attributes:
        keys: The keys.
        values: The values.
        ranks: Ranks of what was added to keys and to values; blocks of other ranks are of another
            form.
    """

    keys: BlockHalf
    values: BlockHalf
    ranks: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True)
class QuantisedPress:
    """Keeps all entries in few bits (GEAR): keys rounded by channel, values by token.

    Attributes:
        called: Name of the press.
        block: Entries that are packed at once.
        bits: Bits of a number: 2, 4 or 8.
        group: Numbers that share a scale. 0: those of a channel's block, or of a token.
        rank: Rank of the low-rank part that is added for the rounding error. 0: none.
        value_rank: The same for values; None: as `rank`.
        decoded_rank: The same for blocks that begin behind the prompt; None: as within it.
        decoded_value_rank: The same for values of these; None: as `decoded_rank`, where it is given.
        prompt: First tokens of the text that count as the prompt; 0: all do.
        outliers: Share of each channel's (token's) numbers that is kept as it is, 0 to 1; half of
            it the largest and half the smallest.
        hadamard: Whether the dimensions of each head's values are mixed before they are rounded,
            and given back when they are read.
        value_group: Values that share a scale, 0: those of a token; None: as many as `group` says.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where outliers are 1 or the ranks are full (as many as a block
    has entries, or a head dimensions).
    """

    unexercised: ClassVar[Mapping[str, str]] = {"dropped": "every entry stays, in fewer bits"}
    called: str
    block: int
    bits: int
    group: int = 0
    rank: int = 0
    outliers: float = 0.0
    hadamard: bool = False
    value_group: int | None = None
    value_rank: int | None = None
    decoded_rank: int | None = None
    decoded_value_rank: int | None = None
    prompt: int = 0
    asks = False
    lasting = True

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise RequestError(f"bits is {self.bits}: it must be 2, 4 or 8")
        behind = {"decoded_rank": self.decoded_rank, "decoded_value_rank": self.decoded_value_rank}
        for name, given in behind.items():
            if given is not None and not self.prompt:
                raise RequestError(
                    f"{name} is {given}, and prompt is 0: say how many first tokens are the prompt"
                )

    @property
    def rounding(self) -> PressRounding | None:
        if self.outliers or self._adds:
            return None
        return PressRounding(self.bits, self.group, self.shared_values, self.hadamard)

    @property
    def _adds(self) -> bool:
        """Whether something is added to any block."""
        # Blocks of the prompt, and the first one that begins behind it.
        ends = (0, -(-self.prompt // self.block))
        return any(rank for k in ends for rank in self.block_ranks(k))

    @property
    def has_factors(self) -> bool:
        """Whether blocks have low-rank parts that attention can multiply apart."""
        return not self.hadamard and self._adds

    @property
    def shared_values(self) -> int:
        """Values that share a scale; 0: those of a token."""
        if self.value_group is None:
            return self.group
        return self.value_group

    def block_ranks(self, k: int) -> tuple[int, int]:
        """Ranks of what is added to the keys and to the values of a block.

        A block belongs to the prompt where its first token does, so that a text has one law
        however it was cut.
        """
        key_rank = self.rank
        value_rank = self.value_rank
        if value_rank is None:
            value_rank = key_rank
        if self.prompt and k * self.block >= self.prompt:
            if self.decoded_rank is not None:
                key_rank = self.decoded_rank
                value_rank = self.decoded_rank
            if self.decoded_value_rank is not None:
                value_rank = self.decoded_value_rank
        return key_rank, value_rank

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
        if kv.dtype != torch.float64:
            kv = kv.float()
        keys, values = kv
        if self.hadamard:
            values = apply_signed_hadamard(values)
        ranks = self.block_ranks(k)
        return QuantisedBlock(
            self._half(
                keys, keys.transpose(-1, -2), lambda x: x.transpose(-1, -2), self.group, ranks[0]
            ),
            self._half(
                values,
                _by_token(values),
                lambda x: _by_head(x, len(values)),
                self.shared_values,
                ranks[1],
            ),
            ranks,
        )

    def _half(
        self,
        exact: Tensor,
        x: Tensor,
        back: Callable[[Tensor], Tensor],
        group: int,
        rank: int,
    ) -> BlockHalf:
        """Round a half of a block.

        Args:
            exact: The numbers, shape ``[kv heads, block, head]``.
            x: The same numbers as vectors to round.
            back: Turns such vectors into the shape of `exact`.
            group: Numbers of a vector that share a scale.
            rank: Rank of what is added for the error.
        """
        # Nothing would be lost: the half stays as it is.
        if self.outliers >= 1.0 or rank >= min(exact.shape[-2:]):
            return exact.clone()
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
        integers = quantise_to_integers(clean, self.bits, group)
        if where is not None:
            where = where.to(torch.uint8 if x.shape[-1] <= 256 else torch.int16)
        half = QuantisedBlockHalf(integers, where, what, None, None)
        if not rank:
            return half
        # The error of what is read back, with outliers in place, in its main directions.
        left, right = low_rank_factors(exact - back(_read([half])[0]).to(exact.dtype), rank)
        return QuantisedBlockHalf(integers, where, what, left.half(), right.half())

    def fill_blocks(self, blocks: Sequence[QuantisedBlock], into: Tensor) -> None:
        """Read the blocks back, and add the low-rank part of the error.

        Args:
            blocks: Packed blocks, in order of the text.
            into: Receives their keys and values side by side, shape
                ``[2, kv heads, entries, head]``.
        """
        self._fill(blocks, into, True)
        if self.hadamard:
            into[1].copy_(undo_signed_hadamard(into[1]))

    def fill_backbones(
        self, blocks: Sequence[QuantisedBlock], into: Tensor
    ) -> Sequence[LowRankEntries]:
        """Read the blocks back without the low-rank part, which is multiplied apart.

        Args:
            blocks: Packed blocks, in order of the text.
            into: Receives their keys and values side by side, shape
                ``[2, kv heads, entries, head]``.

        Returns:
            The low-rank parts of runs of blocks.
        """
        self._fill(blocks, into, False)
        return [
            LowRankEntries(
                first * self.block,
                stack_factors([b.keys for b in run], into.dtype),
                stack_factors([b.values for b in run], into.dtype),
            )
            for first, run in _alike(blocks)
        ]

    def _fill(self, blocks: Sequence[QuantisedBlock], into: Tensor, added: bool) -> None:
        """Read blocks back; added: with the low-rank parts."""
        for first, run in _alike(blocks):
            # A view of `into` by blocks, [2, n, kv heads, block, head].
            part = into[:, :, first * self.block : (first + len(run)) * self.block]
            places = part.unflatten(-2, (len(run), -1)).transpose(1, 2)
            for which, back in enumerate(
                (lambda x: x.transpose(-1, -2), lambda x: _by_head(x, into.shape[1]))
            ):
                halves = [(b.keys, b.values)[which] for b in run]
                rounded = [half for half in halves if isinstance(half, QuantisedBlockHalf)]
                whole = [half for half in halves if isinstance(half, Tensor)]
                if whole:
                    places[which].copy_(torch.stack(whole))
                    continue
                places[which].copy_(back(_read(rounded)))
                if added and (factors := stack_factors(rounded, torch.float32)) is not None:
                    places[which].add_(factors[0] @ factors[1].transpose(-1, -2))


def _alike(
    blocks: Sequence[QuantisedBlock],
) -> Iterator[tuple[int, list[QuantisedBlock]]]:
    """Runs of blocks of one form, each with the index of its first one."""
    first = 0
    for _, run in groupby(blocks, lambda block: block.ranks):
        some = list(run)
        yield first, some
        first += len(some)


def _read(halves: Sequence[QuantisedBlockHalf]) -> Tensor:
    """What was rounded, with outliers where they belong, [n, ...]."""
    x = stack_packed_integers([h.integers for h in halves]).read_numbers()
    if halves[0].where is None:
        return x
    where = torch.stack([h.where for h in halves if h.where is not None]).long()
    what = torch.stack([h.what for h in halves if h.what is not None])
    return x.scatter_(-1, where, what.float())


def stack_factors(halves: Sequence[BlockHalf], dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Stack the directions of the error and their coefficients.

    Args:
        halves: Halves of blocks of one form.
        dtype: Number type of the result.

    Returns:
        Directions, shape ``[n, kv heads, block, rank]``, and coefficients, shape
        ``[n, kv heads, head, rank]``; None: there are none.
    """
    left = [h.left for h in halves if isinstance(h, QuantisedBlockHalf) and h.left is not None]
    right = [h.right for h in halves if isinstance(h, QuantisedBlockHalf) and h.right is not None]
    if not left:
        return None
    return torch.stack(left).to(dtype), torch.stack(right).to(dtype)


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
