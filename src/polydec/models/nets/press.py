"""Keys and values of old text, made smaller: what a pass needs of a press, and how a row of it sees what was packed.

What a row sees is decided by its position alone. Blocks that end at least one block before the row's own are seen packed, what
lies behind them as it is. So a pressed cache has one law, however the text was cut into passes and whatever was drafted,
forked, taken back or shared on the way; and a lossless method is lossless towards this law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polydec.models.nets import masks


class PackedBlock(Protocol):
    """What one layer keeps of a block. It never changes, so any number of caches read it."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PressRounding:
    """A press that rounds to integers of so many bits, and does no more: `group` numbers share a
    scale and a lowest number (methods/presses/_integers.py), those of consecutive tokens in a
    channel of a key, of consecutive channels in a token's values, all heads side by side; 0: all of
    a block, or of a token. Where a length is no multiple of that, their greatest common divisor."""

    bits: int
    group: int


class BlockPacker(Protocol):
    """What a cache asks of whoever packs its blocks: the first half of a Press.

    block: entries that are packed at once; asks: whether it reads the queries of the block behind the packed one, for which a
    cache keeps them; lasting: whether every packed block stays beside those before it; where not, what is packed last stands
    for all of them. Blocks are counted from the beginning of the text, and packed in this order.
    """

    @property
    def block(self) -> int: ...
    @property
    def asks(self) -> bool: ...
    @property
    def lasting(self) -> bool: ...
    @property
    def called(self) -> str: ...

    def pack(self, k: int, kv: Tensor, behind: Tensor | None, before: Any) -> PackedBlock:
        """Block k of one layer. kv [2, kv heads, block, head]: its keys and values; behind [2 + group, kv heads, block, head]:
        those of the block behind it, then its queries, where they are asked for; before: what packing block k - 1 made, where
        that does not last."""
        ...


class CachePress(BlockPacker, Protocol):
    """How old keys and values are kept. Frozen and hashable: caches of equal presses share what they hold.

    rounding: what a press that only rounds does, None: it does more, or something else.
    """

    @property
    def rounding(self) -> PressRounding | None: ...

    def size(self, k: int) -> int:
        """Entries that attention sees of what packing block k makes."""
        ...

    def fill(self, blocks: Sequence[Any], into: Tensor) -> None:
        """Keys and values of several blocks side by side, [2, kv heads, their sizes' sum, head]."""
        ...


def count_sealed_blocks(position: int, press: BlockPacker) -> int:
    """How many blocks a row at this position sees packed."""
    return max(0, position // press.block - 1)


def count_packable_blocks(length: int, press: BlockPacker) -> int:
    """How many blocks can be packed of so many committed entries, whatever comes behind them."""
    return max(0, length // press.block - press.asks)


Chunk = tuple[int, tuple[int, ...]]
"""A packed block, and the slots of the staged entries that it is made of: none where all of them are committed."""


@dataclass(frozen=True, slots=True)
class PressedCacheView:
    """What a query sees of a pressed cache. chunks, sizes: what lies packed before the entries from slot `first` on; mask
    [rows, columns]: added to scores, None where every row sees all."""

    chunks: tuple[Chunk, ...]
    sizes: tuple[int, ...]
    first: int
    mask: Tensor | None

    @property
    def packed(self) -> int:
        """Columns of what is packed."""
        return sum(self.sizes)


def view_pressed_cache(
    press: CachePress,
    position: Sequence[int],
    begin: int,
    length: int,
    parent: Sequence[int],
    like: Tensor,
) -> PressedCacheView:
    """Of a query whose rows stand at these positions, in slots from `begin` on; length, parent: of its cache. Rows that stand
    on both sides of the place from which a block is seen packed have it twice before them, and each sees it once."""
    stop = begin + len(position)
    seen = chunks_of_rows(press, position, begin, length, parent)
    chunks = tuple(dict.fromkeys(c for chunks_of_row in seen for c in chunks_of_row))
    sizes = tuple(press.size(k) for k, _ in chunks)
    first = min(count_sealed_blocks(p, press) for p in position) * press.block
    if len(position) == 1 and masks.is_chain(parent[: max(0, stop - length)]):
        return PressedCacheView(chunks, sizes, first, None)
    return PressedCacheView(
        chunks,
        sizes,
        first,
        _mask(press, position, begin, stop, length, parent, like, seen, chunks, sizes, first),
    )


def chunks_of_rows(
    press: BlockPacker, position: Sequence[int], begin: int, length: int, parent: Sequence[int]
) -> list[tuple[Chunk, ...]]:
    """What is packed of what each row sees; arguments as in `view`."""
    ready = count_packable_blocks(length, press)
    seen = list[tuple[Chunk, ...]]()
    for row, p in enumerate(position):
        blocks = count_sealed_blocks(p, press)
        if blocks <= ready:
            path = ()
        else:
            path = tuple(_ancestors(begin + row, length, parent))
        seen.append(
            tuple(
                (k, () if k < ready else path[: (k + 1 + press.asks) * press.block - length])
                for k in range(0 if press.lasting else max(0, blocks - 1), blocks)
            )
        )
    return seen


def _ancestors(slot: int, length: int, parent: Sequence[int]) -> list[int]:
    """The staged slots on the way to this one, itself left out, in order."""
    out = list[int]()
    if slot < length:
        at = -1
    else:
        at = parent[slot - length]
    while at >= 0:
        out.append(length + at)
        at = parent[at]
    return out[::-1]


def _mask(
    press: CachePress,
    position: Sequence[int],
    begin: int,
    stop: int,
    length: int,
    parent: Sequence[int],
    like: Tensor,
    seen: Sequence[tuple[Chunk, ...]],
    chunks: tuple[Chunk, ...],
    sizes: tuple[int, ...],
    first: int,
) -> Tensor:
    dtype = like.dtype
    device = like.device
    packed = sum(sizes)
    at = {c: i for i, c in enumerate(chunks)}
    mask = torch.zeros(len(position), packed + stop - first, dtype=dtype, device=device)
    part = masks.tree_attention_mask(begin, stop, length, parent, dtype, device)[
        :, -(stop - first) :
    ]
    mask[:, mask.shape[1] - part.shape[1] :] = part
    staged = [length + d for d in masks.staged_entry_depths(parent[: max(0, stop - length)])]
    slots = torch.tensor(
        [*range(first, min(length, stop)), *staged][-(stop - first) :], device=device
    )
    from_ = torch.tensor(
        [count_sealed_blocks(p, press) * press.block for p in position], device=device
    )
    mask[:, packed:].masked_fill_(slots < from_[:, None], masks.NEG_INF)
    if packed:
        hidden = torch.ones(len(position), len(chunks), dtype=torch.bool)
        for row, visible in enumerate(seen):
            hidden[row, [at[c] for c in visible]] = False
        wide = hidden.repeat_interleave(torch.tensor(sizes), 1).to(device)
        mask[:, :packed].masked_fill_(wide, masks.NEG_INF)
    return mask
