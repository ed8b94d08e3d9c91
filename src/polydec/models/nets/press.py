"""Keys and values of old text, made smaller: what a pass needs of a press, and how a row of it sees
what was packed.

What a row sees is decided by its position alone. Blocks that end at least one block before the
row's own are seen packed, what lies after them as it is. So a pressed cache has one law, however
the text was cut into passes and whatever was drafted, forked, taken back or shared on the way; and
a lossless method is lossless towards this law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from polydec.models.nets import masks


class PackedBlock(Protocol):
    """What one layer keeps of a block. It never changes, so any number of caches read it."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PressRounding:
    """A press that rounds to integers, and does no more (methods/presses/_integers.py).

    Attributes:
        bits: Bits of an integer.
        group: How many numbers of consecutive tokens in a channel of a key share a scale and a
            lowest number. 0: all of a block. Where a length is no multiple of it, their greatest
            common divisor.
        value_group: The same of consecutive channels in a token's values, all heads side by side.
            0: all of a token.
        hadamard: Whether the dimensions of each head's values are mixed by signs and a
            Walsh-Hadamard transform first (methods/presses/_hadamard.py).
    """

    bits: int
    group: int
    value_group: int
    hadamard: bool


class BlockPacker(Protocol):
    """What a cache asks of whoever packs its blocks: the first half of a press.

    Blocks are counted from the beginning of the text, and packed in this order.

    Attributes:
        block: Entries that are packed at once.
        asks: Whether it reads the queries of the block after the packed one, for which a cache
            keeps them.
        lasting: Whether every packed block stays next to those before it. If not, what is packed
            last stands for all of them.
        called: What messages call it.
    """

    @property
    def block(self) -> int: ...
    @property
    def asks(self) -> bool: ...
    @property
    def lasting(self) -> bool: ...
    @property
    def called(self) -> str: ...

    def pack_block(self, k: int, kv: Tensor, behind: Tensor | None, before: Any) -> PackedBlock:
        """Pack a block of one layer.

        Args:
            k: Index of the block, from the beginning of the text.
            kv: Its keys and values, ``[2, kv heads, block, head]``.
            behind: Keys and values of the block after it, then its queries, ``[2 + group, kv heads,
                block, head]``; None for a press that does not ask for them.
            before: What packing block k - 1 made, where that does not last; else None.

        Returns:
            What the cache keeps of the block.
        """
        ...


@dataclass(frozen=True, slots=True)
class LowRankEntries:
    """What is added to keys and values of a run of packed blocks: a matrix of low rank for each
    block, as two factors that attention multiplies one after the other.

    Attributes:
        first: Column of the run's first entry.
        keys: Directions ``[blocks, kv heads, block, rank]`` and coefficients ``[blocks, kv heads,
            head, rank]``; None: nothing is added to keys.
        values: The same of values.
    """

    first: int
    keys: tuple[Tensor, Tensor] | None
    values: tuple[Tensor, Tensor] | None

    def add_scores(self, scores: Tensor, query: Tensor) -> None:
        """Add the scores of the keys' part: query times coefficients, then times directions.

        Args:
            scores: Scores of all columns, ``[kv heads, rows, columns]``; they are changed.
            query: The queries, ``[kv heads, rows, head]``.
        """
        if self.keys is None:
            return
        left, right = self.keys
        # [blocks, kv heads, rows, rank], then [kv heads, rows, blocks, block].
        made = ((query @ right) @ left.transpose(-1, -2)).permute(1, 2, 0, 3).flatten(-2)
        scores[..., self.first : self.first + made.shape[-1]] += made

    def add_gathered(self, gathered: Tensor, weights: Tensor) -> None:
        """Add what weights gather of the values' part: weights times directions, then times
        coefficients.

        Args:
            gathered: What rows gathered, ``[kv heads, rows, head]``; it is changed.
            weights: Weights of all columns, ``[kv heads, rows, columns]``.
        """
        if self.values is None:
            return
        left, right = self.values
        size = len(left) * left.shape[2]
        part = weights[..., self.first : self.first + size].unflatten(-1, (len(left), -1))
        by_block = part.permute(2, 0, 1, 3)
        gathered += ((by_block @ left) @ right.transpose(-1, -2)).sum(0)


class CachePress(BlockPacker, Protocol):
    """How old keys and values are kept. Frozen and hashable: caches of equal presses share what
    they hold.

    rounding: what a press that only rounds does, None: it does more, or something else.
    """

    @property
    def rounding(self) -> PressRounding | None: ...

    def kept_size(self, k: int) -> int:
        """Entries that attention sees of what packing block k makes."""
        ...

    def fill_blocks(self, blocks: Sequence[Any], into: Tensor) -> None:
        """Write the keys and values of several packed blocks side by side.

        Args:
            blocks: What `pack_block` made of them, in the order of the text.
            into: Where they go, ``[2, kv heads, the sum of their sizes, head]``.
        """
        ...


def reads_repeats(press: BlockPacker | None) -> TypeGuard[BlockPacker]:
    """Whether a press asks what a repeat of a block looks at: then `behind` has the entries of the
    block's own repeat, fed behind the block, in place of the next block's."""
    # A press of another package may know nothing of it.
    return getattr(press, "reads_repeat", False)


def count_sealed_blocks(position: int, press: BlockPacker) -> int:
    """How many blocks a row sees packed: all that end at least one block before its own.

    Args:
        position: Position of the row.
        press: Says how many entries a block has.

    Returns:
        The number of blocks, counted from the beginning of the text.
    """
    return max(0, position // press.block - 1)


def count_packable_blocks(length: int, press: BlockPacker) -> int:
    """How many blocks can be packed, whatever comes after the committed entries.

    Args:
        length: Number of committed entries.
        press: Says how many entries a block has. One that asks for queries needs the following
            block as well.

    Returns:
        The number of blocks, counted from the beginning of the text.
    """
    return max(0, length // press.block - press.asks)


Chunk = tuple[int, tuple[int, ...]]
"""A packed block, and the slots of the staged entries that it is made of: none where all of them
are committed."""


@dataclass(frozen=True, slots=True)
class PressedCacheView:
    """What a query sees of a pressed cache.

    Attributes:
        chunks: The packed blocks that lie before the entries from slot `first` on.
        sizes: Of each chunk the columns that attention sees.
        first: The first slot that some row sees as it is.
        mask: Added to scores, ``[rows, columns]``; None where every row sees everything.
    """

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
    """Find what a query sees of a pressed cache.

    Rows that stand on both sides of the place from which a block is seen packed have it twice
    before them, packed and as it is. Each row sees it once.

    Args:
        press: The cache's press.
        position: Positions of the query's rows.
        begin: Slot of its first row.
        length: Committed entries of the cache.
        parent: Of each staged entry the offset of the entry that it follows; -1: the last committed
            one.
        like: A tensor whose number type and device the mask takes.

    Returns:
        The packed blocks that some row sees, the first slot that is seen as it is, and the mask.
    """
    stop = begin + len(position)
    seen = chunks_of_rows(press, position, begin, length, parent)
    # A block that several rows see is there once; a dict keeps the order.
    chunks = tuple(dict.fromkeys(c for chunks_of_row in seen for c in chunks_of_row))
    sizes = tuple(press.kept_size(k) for k, _ in chunks)
    # The row that stands first sees the fewest blocks packed: entries from there on are laid out as
    # they are.
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
    """Find the packed blocks that each row of a query sees.

    Args:
        press: The cache's press.
        position: Positions of the rows.
        begin: Slot of the first row.
        length: Committed entries of the cache.
        parent: Of each staged entry the offset of the entry that it follows; -1: the last committed
            one.

    Returns:
        Of each row its blocks, in the order of the text. A press that is not lasting has the last
        one only.
    """
    ready = count_packable_blocks(length, press)
    seen = list[tuple[Chunk, ...]]()
    for row, p in enumerate(position):
        blocks = count_sealed_blocks(p, press)
        # A block that is not committed in full is made of the row's own ancestors, so rows of
        # different branches may have different blocks.
        if blocks <= ready:
            path = ()
        else:
            # The slots of the staged tokens before this one, as a block is made of them.
            path = tuple(_ancestors(begin + row, length, parent))
        seen.append(
            tuple(
                # A block that is not committed in full is named by the staged slots up to its end;
                # one that asks for queries looks a block further.
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
    # Columns: packed entries, then slots from `first` on; the tree's mask covers the last of these.
    mask[:, mask.shape[1] - part.shape[1] :] = part
    staged = [length + d for d in masks.staged_entry_depths(parent[: max(0, stop - length)])]
    # Positions of the columns that are not packed.
    slots = torch.tensor(
        [*range(first, min(length, stop)), *staged][-(stop - first) :], device=device
    )
    # Entries below it are seen packed by this row, so it must not see them as they are as well.
    from_ = torch.tensor(
        [count_sealed_blocks(p, press) * press.block for p in position], device=device
    )
    mask[:, packed:].masked_fill_(slots < from_[:, None], masks.NEG_INF)
    if packed:
        # Each row sees its own chunks only.
        hidden = torch.ones(len(position), len(chunks), dtype=torch.bool)
        for row, visible in enumerate(seen):
            hidden[row, [at[c] for c in visible]] = False
        wide = hidden.repeat_interleave(torch.tensor(sizes), 1).to(device)
        mask[:, :packed].masked_fill_(wide, masks.NEG_INF)
    return mask
