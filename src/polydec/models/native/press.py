"""Presses in the compiled step: keys and values in few bits, which attention reads in integers (models/native/press.cpp).

The law is that of the torch path's press, number by number: blocks of the same positions, rounded to the same integers with the
same scales. What differs is the order of sums, and queries and weights that are rounded to 16 bits on their way.
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
from polydec.models.nets.cache import KVCache
from polydec.models.nets.memory import empty_pooled_tensor
from polydec.models.nets.press import CachePress, Chunk, chunks_of_rows, count_sealed_blocks

CPU = torch.device("cpu")
LEAST = 1 << 20
MOST = 1 << 23
"""Bytes of a piece of memory for packed blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class NativePackedBlock:
    """What one layer keeps of a block, as press.h lays it out. address: where it lies."""

    bytes: Tensor
    address: int

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes


class PackedBlockSlab:
    """Room for the packed blocks of one text, large pieces at a time, which large pages bear: a pass reads all of them, and a
    block of one layer is a few small pages. Each piece is about as large as all before it, and is given back once no block
    in it is read any more."""

    __slots__ = ("_left", "_total")

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)
        self._total = 0

    def take(self, size: int) -> Tensor:
        """So many bytes, at a multiple of 64 where all sizes are."""
        if len(self._left) < size:
            piece = max(size, min(max(LEAST, self._total), MOST))
            self._left = empty_pooled_tensor((piece,), torch.uint8, CPU)
            self._total = self._total + piece
        taken = self._left[:size]
        self._left = self._left[size:]
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class StepPress:
    """A press as the library packs it (models/nets/press.py, Packing). shape: what the library is
    told; size: bytes of a packed block of one layer; into: packs one; slab: where blocks lie."""

    called: str
    block: int
    shape: PressOf
    size: int
    into: Callable[[PressOf, Tensor, Tensor], None]
    slab: PackedBlockSlab
    asks = False
    lasting = True

    def pack(self, k: int, kv: Tensor, behind: Tensor | None, before: Any) -> NativePackedBlock:
        out = self.slab.take(self.size)
        self.into(self.shape, kv.contiguous(), out)
        return NativePackedBlock(out, out.data_ptr())


def step_press(
    press: CachePress,
    values: int,
    size_of: Callable[[PressOf], int],
    into: Callable[[PressOf, Tensor, Tensor], None],
) -> StepPress:
    """A press for the compiled step; values: numbers of a token's values, all heads side by side. Raises RequestError where
    the library does not read such blocks."""
    rounding = getattr(press, "rounding", None)  # a press of another package may know nothing of it
    if rounding is None:
        raise RequestError(
            f"cache is {press.called}: the compiled step packs caches by rounding alone (quantised); load the model on the "
            "torch path (--dtype torch)"
        )
    shape = PressOf(
        rounding.bits,
        press.block,
        gcd(rounding.group, press.block),
        gcd(rounding.group, values),
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
    """Packed blocks that rows see, in slots from `first` on and at these positions, and which rows. Nearly always the
    longest list is all rows' (each sees its own part of it); only where a draft is longer than a block, branches have their
    own."""
    press = cache.press
    assert press is not None
    most = count_sealed_blocks(max(position), press)
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
    """Tells the library where packed blocks lie, of layers that run. What is returned must live as long as `to` is read."""
    press = cache.press
    assert isinstance(press, StepPress)
    rows = list[list[NativePackedBlock]]()
    for layer in layers:
        known = cache.packed[layer]
        if not chunks or (not chunks[-1][1] and len(known) >= len(chunks)):
            rows.append(known[: len(chunks)])  # pyright: ignore[reportArgumentType]
        else:
            rows.append([cache.chunk(layer, c) for c in chunks])  # pyright: ignore[reportArgumentType]
    table = array("Q", bytes(8 * (len(cache.packed) * len(chunks) + 1)))
    for layer, row in zip(layers, rows, strict=True):
        at = layer * len(chunks)
        table[at : at + len(row)] = array("Q", [block.address for block in row])
    to.press = C.addressof(press.shape)
    to.base = cache.base
    to.blocks = len(chunks)
    to.packed = table.buffer_info()[0]
    return table, rows
