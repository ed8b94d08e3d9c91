"""Presses in the compiled step: keys and values in few bits, which attention reads in integers
(models/native/press.cpp).

The law is that of the torch path's press, number by number: blocks of the same positions, rounded
to the same integers with the same scales. What differs is the order of sums, and queries and
weights that are rounded to 16 bits on their way.
"""

from __future__ import annotations

import ctypes as C
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.models.native.library import CacheOf, PressOf
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.memory_pool import empty_pooled_tensor
from polydec.models.nets.press import CachePress, Chunk, chunks_of_rows, count_sealed_blocks

CPU = torch.device("cpu")
LEAST = 1 << 20
MOST = 1 << 23
"""Bytes of a piece of memory for packed blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class NativePackedBlock:
    """What one layer stores of a block, as press.h lays it out.

    Attributes:
        bytes: Its bytes, uint8.
        address: Where they lie.
    """

    bytes: Tensor
    address: int

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes


class PackedBlockSlab:
    """Room for the packed blocks of one text, large pieces at a time.

    Large pages bear such pieces: a pass reads all of them, and a block of one layer is a few small
    pages. Each piece is about as large as all before it, and is given back once no block in it is
    read any more.
    """

    __slots__ = ("_left", "_total")

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)
        self._total = 0

    def take_bytes(self, size: int) -> Tensor:
        """So many bytes, at a multiple of 64 where all sizes are."""
        if len(self._left) < size:
            # Each piece doubles the room, so that there are few of them; none is smaller than LEAST
            # or larger than MOST, unless a block is.
            piece = max(size, min(max(LEAST, self._total), MOST))
            self._left = empty_pooled_tensor((piece,), torch.uint8, CPU)
            self._total = self._total + piece
        taken = self._left[:size]
        self._left = self._left[size:]
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class StepPress:
    """A press as the library packs it (models/nets/press.py, BlockPacker).

    Attributes:
        called: What messages call it.
        block: Entries that are packed at once.
        shape: What the library reads of it.
        size: Bytes of a packed block of one layer.
        into: Packs a block into bytes.
        slab: Where packed blocks lie.
    """

    called: str
    block: int
    shape: PressOf
    size: int
    into: Callable[[PressOf, Tensor, Tensor], None]
    slab: PackedBlockSlab
    asks = False
    lasting = True

    def pack_block(
        self, k: int, kv: Tensor, behind: Tensor | None, before: Any
    ) -> NativePackedBlock:
        """Pack a block of one layer.

        Args:
            k: Index of the block; rounding does not need it.
            kv: Its keys and values, ``[2, kv heads, block, head]``.
            behind: Not asked for: None.
            before: Not needed, as every packed block lasts: None.

        Returns:
            The packed block.

        Raises:
            MissingError: A number is not finite.
        """
        out = self.slab.take_bytes(self.size)
        self.into(self.shape, kv.contiguous(), out)
        return NativePackedBlock(out, out.data_ptr())


def step_press(
    press: CachePress,
    values: int,
    size_of: Callable[[PressOf], int],
    into: Callable[[PressOf, Tensor, Tensor], None],
) -> StepPress:
    """Make a press for the compiled step.

    Args:
        press: The press that was asked for.
        values: Numbers of a token's values, all heads side by side.
        size_of: Asks the library for the bytes of a packed block; 0: it does not read such blocks.
        into: Packs a block into bytes.

    Returns:
        The press as the library packs it.

    Raises:
        RequestError: The library does not read such blocks.
    """
    rounding = getattr(press, "rounding", None)  # a press of another package may know nothing of it
    if rounding is None:
        raise RequestError(
            f"cache is {press.called}: the compiled step packs caches by rounding alone (quantised, hadamard); load the model "
            "on the torch path (--dtype torch)"
        )
    # Groups must divide what they group: tokens of a block for keys, numbers of a token for values.
    # gcd(0, n) is n: all of them.
    shape = PressOf(
        rounding.bits,
        press.block,
        gcd(rounding.group, press.block),
        gcd(rounding.value_group, values),
        rounding.hadamard,
    )
    size = size_of(shape)
    if not size:
        raise RequestError(
            f"cache is {press.called}, block {press.block} and group {rounding.group}: the compiled step packs blocks of 16, "
            "32, 64 or 128 in groups of multiples of 16, or 0; choose such, or load the model on the torch path (--dtype torch)"
        )
    return StepPress(press.called, press.block, shape, size, into, PackedBlockSlab())


def visible_chunks(
    cache: KVCache, first: int, position: Sequence[int]
) -> list[tuple[tuple[Chunk, ...], list[int]]]:
    """Find the packed blocks that rows see.

    Nearly always one list does for all rows, the longest (each sees its own part of it). Only where
    a draft is longer than a block do branches have lists of their own.

    Args:
        cache: The pressed cache.
        first: Slot of the first row.
        position: Positions of the rows.

    Returns:
        Lists of blocks, each with the indices of the rows that see it.
    """
    press = cache.press
    assert press is not None
    most = count_sealed_blocks(max(position), press)
    # All of them are made of committed entries, so no branch has blocks of its own.
    if most * press.block <= cache.length:
        return [(tuple((k, ()) for k in range(most)), list(range(len(position))))]
    by = dict[tuple[Chunk, ...], list[int]]()
    for row, chunks in enumerate(
        chunks_of_rows(press, position, first, cache.length, cache.parent)
    ):
        by.setdefault(chunks, []).append(row)
    return list(by.items())


def fill_cache_descriptor(
    to: CacheOf, cache: KVCache, chunks: tuple[Chunk, ...], layers: Sequence[int]
) -> Any:
    """Say where packed blocks lie, for the library.

    Args:
        to: The library's record of the cache; it is written to.
        cache: The pressed cache.
        chunks: The blocks that are seen, in the order of the text.
        layers: Layers that run; tables of the others stay empty.

    Returns:
        What must live as long as `to` is read.
    """
    press = cache.press
    assert isinstance(press, StepPress)
    rows = list[list[NativePackedBlock]]()
    for layer in layers:
        known = cache.packed[layer]
        # They are packed already; else they are now.
        if not chunks or (not chunks[-1][1] and len(known) >= len(chunks)):
            rows.append(known[: len(chunks)])  # pyright: ignore[reportArgumentType]
        else:
            rows.append([cache.packed_chunk(layer, c) for c in chunks])  # pyright: ignore[reportArgumentType]
    # Addresses, [layers, blocks]. One number more, so that an empty table has an address too.
    table = array("Q", bytes(8 * (len(cache.packed) * len(chunks) + 1)))
    for layer, row in zip(layers, rows, strict=True):
        at = layer * len(chunks)
        table[at : at + len(row)] = array("Q", [block.address for block in row])
    to.press = C.addressof(press.shape)
    to.base = cache.base
    to.blocks = len(chunks)
    to.packed = table.buffer_info()[0]
    return table, rows
