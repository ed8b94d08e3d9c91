"""The paged cache: keys and values of one sequence, in blocks that other sequences may share. It has
one owner, a session, and few verbs: reserve, stage, commit, keep, truncate, fork."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.models.nets.grid_positions import ImageGrid
from polydec.models.nets.hidden_entries import HiddenEntries
from polydec.models.nets.memory_pool import empty_pooled_tensor
from polydec.models.nets.press import (
    BlockPacker,
    Chunk,
    PackedBlock,
    count_packable_blocks,
    count_sealed_blocks,
    reads_repeats,
)

BLOCK = 128
"""Entries: what caches share ends at a multiple of it (the compiled step's attention goes by such
blocks)."""
GROWTH = 256
"""Entries that a cache with storage of its own grows by, at least."""


class CacheStorage:
    """Slots in which one cache writes and others may read.

    Attributes:
        kv: The slots, ``[..., slots, head]``.
        start: Position of the first slot.
        leases: Who reads; None where nobody ever did (every pass asks).
    """

    __slots__ = ("kv", "leases", "start")

    def __init__(self, kv: Tensor, start: int = 0) -> None:
        self.kv = kv
        self.start = start
        self.leases: WeakSet[StorageLease] | None = None

    @property
    def sealed_entries(self) -> int:
        """Slots below this position are somebody else's too, and may not be written."""
        return max((lease.stop for lease in self.leases or ()), default=0)


class StorageLease:
    """Entries of a storage that a cache reads without owning it: up to position `stop`. Dropping it
    gives them back."""

    __slots__ = ("__weakref__", "of", "stop")

    def __init__(self, of: CacheStorage, stop: int) -> None:
        self.of = of
        self.stop = stop
        if of.leases is None:
            of.leases = WeakSet()
        of.leases.add(self)


class KVCache:
    """Keys and values of one sequence.

    Slots ``[0, length)`` are committed, one a position; the staged tree lies after them, one slot a
    node.

    `parent[j]` is the staged offset of the predecessor of staged entry j, or -1 where that is the
    last committed one. A pass writes the slots of its own tokens; whoever stages them makes the
    room. Storage: ``[..., slots, head]``, any number of leading axes (layers, 2, kv heads here).

    Entries below `start` lie in storage of other caches (`shared`, in order), the rest in `kv`,
    which only this cache writes. A fork copies nothing; who writes first where the other reads
    copies less than one block.

    With a press (models/nets/press.py) full blocks of old entries are there once more, packed:
    `packed` has those of every layer. Entries below `base` are there packed only. The first axis is
    the layers' then, the second has keys, values and, for a press that asks, queries.

    repeats: for a press that asks what a repeat of the text looks at (`reads_repeats`), of each
    block from the first one on the entries of its repeat, keys, values and queries of all layers;
    None where every layer has packed the block.

    beside: what the sequence reads in addition to its own text (an encoder's output); forks share
    it. None: nothing.

    grids: where images stand in its text whose vectors have rows and columns; forks share them.

    hidden: which entries are seen in the first layers only; None: all are seen in all layers. Forks
    share it.
    """

    __slots__ = (
        "_own",
        "address",
        "base",
        "beside",
        "capacity",
        "grids",
        "hidden",
        "kv",
        "length",
        "packed",
        "parent",
        "press",
        "repeats",
        "shared",
        "start",
    )

    def __init__(self, kv: Tensor, length: int = 0, press: BlockPacker | None = None) -> None:
        self.beside: Any = None
        self.grids = tuple[ImageGrid, ...]()
        self.hidden: HiddenEntries | None = None
        self.length = length
        self.parent = list[int]()
        self.shared = tuple[StorageLease, ...]()
        self.press = press
        self.base = 0
        self.repeats = list[Tensor | None]()
        self.packed = tuple(
            list[PackedBlock | None]() for _ in range(0 if press is None else len(kv))
        )
        self._hold(CacheStorage(kv))

    def _hold(self, own: CacheStorage) -> None:
        self._own = own
        self.kv = own.kv
        self.start = own.start
        self.capacity, self.address = (
            own.kv.shape[-2],
            own.kv.data_ptr(),
        )  # at hand: a pass asks for them

    @property
    def end(self) -> int:
        """The first free slot."""
        return self.length + len(self.parent)

    def stage_slots(self, parent: Sequence[int]) -> int:
        """Make room for a tree, or for more nodes of the staged one; the slot of its first node."""
        first = self.length + len(self.parent)
        # New nodes need room, and slots that nobody else reads. Where the start lies beyond the
        # committed length, staged entries lie with other caches, and would be moved in place later.
        need = first + len(parent)
        if need > self.start + self.capacity or self.start > self.length or self._own.leases:
            self._move(first, need)
        self.parent += parent
        return first

    def reserve_slots(self, need: int) -> None:
        """Make room for so many entries in all, which are about to come: a long text does not move
        on its way then.

        A cache that is packed on its way never needs the room at once.
        """
        if need > self.start + self.capacity and self.press is None:
            self._move(self.end, need)

    def claim_slots(self, first: int) -> None:
        """Slots from `first` on are about to be written again."""
        self._move(first, self.end)

    def append_entries(self, kv: Tensor) -> None:
        """Further committed entries, while nothing is staged."""
        n = kv.shape[-2]
        first = self.stage_slots(range(-1, n - 1)) - self.start
        self.kv[..., first : first + n, :] = kv
        self.commit_path(range(n))

    def copy_shared(self) -> None:
        """Copy what other caches hold, so that they may go."""
        if not self.shared:
            return
        base = self.base
        # Rounded up to full blocks.
        size = -(-(self.end - self.base) // BLOCK) * BLOCK
        kv = empty_pooled_tensor(
            (*self.kv.shape[:-2], size, self.kv.shape[-1]), self.kv.dtype, self.kv.device
        )
        for at, piece in self.entry_pieces(base, self.end):
            kv[..., at - base : at - base + piece.shape[-2], :] = piece
        self.shared = ()
        self._hold(CacheStorage(kv, base))

    def commit_path(self, path: Sequence[int]) -> None:
        """Commit these staged entries (a path from the tip, ascending), drop the other staged ones."""
        self.keep_path(path, ())

    def keep_path(self, path: Sequence[int], stay: Sequence[int]) -> None:
        """Commit a path of the staged entries, and keep others staged.

        Args:
            path: Offsets of the staged entries that are committed, ascending; each follows the one
                before it.
            stay: Offsets of those that stay staged, in this order: ascending, after the path, and
                each with its parent unless that is committed. All others are dropped.
        """
        parent = self.parent
        # Entries at the front that keep their places need no copy. From the first one that moves
        # on, all are gathered into consecutive slots, after they were made this cache's own.
        kept = [*path, *stay]
        if kept and kept[-1] >= len(kept):  # some before the last one are dropped
            moved = next(i for i, j in enumerate(kept) if i != j)
            self._move(self.length + moved, self.end)
            index = torch.tensor(kept[moved:], device=self.kv.device) + (self.length - self.start)
            at = self.length - self.start + moved
            self.kv[..., at : at + len(index), :] = self.kv.index_select(-2, index)
        self.length += len(path)
        if stay:
            # Offsets begin at 0 again. A parent that is committed now has none: -1.
            new = {j: i for i, j in enumerate(stay)}
            self.parent = [new.get(parent[j], -1) for j in stay]
        else:
            self.parent = []

    def truncate_entries(self, length: int) -> None:
        """Forget what is staged, and every committed slot from `length` on.

        0 gives all memory back. Where entries that rows after `length` see are there packed only,
        all are forgotten.
        """
        if not 0 <= length <= self.length:
            raise RequestError(
                f"length is {length}: it must lie in 0 to {self.length}, the committed entries"
            )
        length = self.available_entries(length)
        self.length = length
        self.parent = []
        self._unpack(length)
        if not length:
            self.shared = ()
            self.base = 0
            self._hold(CacheStorage(self.kv.new_empty(*self.kv.shape[:-2], 0, self.kv.shape[-1])))

    def fork(self, length: int | None = None) -> KVCache:
        """A twin that reads the same entries.

        With `length` it has the first committed ones only, and nothing staged. It has none where
        rows after them see some that are there packed only.
        """
        if length is not None:
            length = self.available_entries(length)
        stop = self.end if length is None else length
        # The twin has storage of no slots: whatever it writes first makes some.
        twin = KVCache(
            self.kv.new_empty(*self.kv.shape[:-2], 0, self.kv.shape[-1]),
            self.length if length is None else length,
            self.press,
        )
        # A shorter twin has committed entries alone; the tree of staged ones is not its own.
        if length is None:
            twin.parent = list(self.parent)
        else:
            twin.parent = []
        twin.base = self.base if stop else 0
        twin.packed = tuple(list(layer) for layer in self.packed)
        twin.repeats = list(self.repeats)
        # What a press had packed may reach beyond the twin's end.
        twin._unpack(twin.length)
        # Storage below `stop` is shared, and nobody writes there any more.
        twin.shared = self._read(stop)
        twin.start = stop
        twin.beside = self.beside
        twin.grids = self.grids
        twin.hidden = self.hidden
        return twin

    def entry_pieces(self, first: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Yield where entries lie, in order.

        Args:
            first: First entry; where old entries are there packed only, not below `base`.
            stop: The entry after the last one.

        Yields:
            The position of a piece's first entry, and the piece, a view ``[..., n, head]``.
        """
        for of, end in (*((lease.of, lease.stop) for lease in self.shared), (self._own, stop)):
            end = min(end, stop)
            if first < end:
                yield first, of.kv[..., first - of.start : end - of.start, :]
                first = end

    def all_entries(self) -> Tensor:
        """All of them, committed and staged, side by side: a view where nothing is shared, else a
        copy."""
        pieces = [t for _, t in self.entry_pieces(self.base, self.end)]
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat([*pieces, self.kv[..., :0, :]], -2)

    def layer_entries(self, i: int, stop: int) -> Tensor:
        """The entries of one layer from the first one on.

        Args:
            i: Index on the first axis: the layer.
            stop: How many entries.

        Returns:
            ``[..., stop, head]``: a view where they lie in one storage, else a copy.
        """
        pieces = [t[i] for _, t in self.entry_pieces(0, stop)]
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat([*pieces, self.kv[i, ..., :0, :]], -2)

    def packed_chunk(self, layer: int, at: Chunk) -> PackedBlock:
        """What is packed of a block of one layer; it is packed now where it was not yet.

        Args:
            layer: Index of the layer.
            at: The block, counted from the beginning of the text, and the staged slots that it is
                made of (none where all of it is committed).

        Returns:
            What the press made of the block. It is remembered unless staged entries are part of it.
        """
        k, path = at
        assert self.press is not None
        blocks = self.packed[layer]
        if k < len(blocks):
            packed = blocks[k]
            assert packed is not None, f"block {k} was given back"
            return packed
        # Blocks are packed in order, since a press may build on what it made of the block before.
        while not path and len(blocks) < k:
            self.packed_chunk(layer, (len(blocks), ()))
        size = self.press.block
        length = self.length
        kv = self._block(layer, k * size, path)[:2]
        if reads_repeats(self.press):
            repeated = self.repeats[k]
            assert repeated is not None, f"the repeat of block {k} was given back"
            behind = repeated[layer]
        elif self.press.asks:
            # Some presses look at the queries of the following block to find out which entries are
            # attended to.
            behind = self._block(layer, (k + 1) * size, path)
        else:
            behind = None
        before = None
        if k and not self.press.lasting:
            ready = k - 1 < count_packable_blocks(length, self.press)
            # The block before may reach into the staged entries, too: it gets the part of the path
            # that it is made of.
            before = self.packed_chunk(
                layer, (k - 1, () if ready else path[: (k + self.press.asks) * size - length])
            )
        packed = self.press.pack_block(k, kv, behind, before)
        if not path:
            blocks.append(packed)
        return packed

    def _block(self, layer: int, first: int, path: Sequence[int]) -> Tensor:
        """Entries of one layer at a block's positions, from `first` on; path: the slots of those
        that are staged."""
        assert self.press is not None
        stop = first + self.press.block
        pieces = [t[layer] for _, t in self.entry_pieces(first, min(stop, self.length))]
        if path and stop > self.length:
            # Positions beyond the committed text belong to staged nodes, which lie in the order of
            # the tree: the path says which of them are meant.
            staged = torch.cat([t[layer] for _, t in self.entry_pieces(self.length, self.end)], -2)
            slots = path[max(0, first - self.length) : stop - self.length]
            pieces.append(
                staged.index_select(
                    -2, torch.tensor([s - self.length for s in slots], device=self.kv.device)
                )
            )
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces, -2)

    def shed_packed(self, filled: int) -> None:
        """Give back old entries that every layer has packed, but for one block that a short rewind
        may ask for.

        Only between passes, which look at where entries lie.

        Args:
            filled: How many committed entries have passed every layer.
        """
        if self.press is None:
            return
        count = min(min(map(len, self.packed)), count_sealed_blocks(filled, self.press) - 1)
        base = count * self.press.block
        if base <= self.base:
            return
        # What was packed last stands for all blocks before it.
        if not self.press.lasting:
            for layer in self.packed:
                layer[: count - 1] = [None] * (count - 1)
        # Every layer has packed these blocks.
        if self.repeats:
            self.repeats[:count] = [None] * count
        self.shared = tuple(lease for lease in self.shared if lease.stop > base)
        # What is left moves to storage of its own size, so that the old one can go.
        if self.start < base:
            left = self.kv[..., base - self.start : self.end - self.start, :]
            size = left.shape[-2] + self.press.block
            kv = empty_pooled_tensor(
                (*left.shape[:-2], size, left.shape[-1]), left.dtype, left.device
            )
            kv[..., : left.shape[-2], :] = left
            self._hold(CacheStorage(kv, base))
        self.base = base

    def available_entries(self, length: int) -> int:
        """So many entries, where all that rows after them see is there; else 0: how many a fork or
        a cut may have."""
        missing = (
            self.press is not None
            and count_sealed_blocks(length, self.press) * self.press.block < self.base
        )
        if missing:
            return 0
        return length

    def _unpack(self, length: int) -> None:
        """Forget what was packed of entries from `length` on, and their repeats."""
        if self.press is not None:
            del self.repeats[length // self.press.block :]
        for layer in self.packed if self.press is not None else ():
            del layer[count_packable_blocks(length, self.press) :]  # pyright: ignore[reportArgumentType]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, what it shares included."""
        return total_cache_bytes((self,))

    @property
    def storage(self) -> Iterator[CacheStorage]:
        yield self._own
        yield from (lease.of for lease in self.shared)

    def _read(self, stop: int) -> tuple[StorageLease, ...]:
        """Leases of the entries below `stop`."""
        out = list[StorageLease]()
        for lease in self.shared:
            # Each lease begins where the one before it ends.
            first = out[-1].stop if out else self.base
            if first < stop:
                out.append(lease if lease.stop <= stop else StorageLease(lease.of, stop))
        if self.start < stop and self.capacity:
            out.append(StorageLease(self._own, stop))
        return tuple(out)

    def _move(self, first: int, need: int) -> None:
        """See to it that slots ``[first, need)``, and what they may move to, are this cache's own.

        Where they are not, the last block moves to new storage, and what lies below is shared from
        then on. Storage that nobody else reads grows.
        """
        base = min(first, self.length)
        own = self._own
        if (
            self.start <= base
            and need <= self.start + self.capacity
            and first >= own.sealed_entries
        ):
            return
        # With readers, only the tail from a block's begin on is copied; what lies before it stays
        # where it is, and is leased.
        alone = not self.shared and not own.leases
        if alone:
            start = self.base
        else:
            start = max(self.base, base // BLOCK * BLOCK)
        # Growing by a quarter keeps the number of copies logarithmic in the length.
        grows = alone and self.press is None  # a pressed cache stays short
        size = need - start
        least = GROWTH if grows else BLOCK
        if grows and self.capacity:
            size = max(size, self.capacity + max(least, self.capacity // 4))
        size = -(-size // least) * least
        kv = empty_pooled_tensor(
            (*self.kv.shape[:-2], size, self.kv.shape[-1]), self.kv.dtype, self.kv.device
        )
        for at, piece in self.entry_pieces(start, self.end):
            kv[..., at - start : at - start + piece.shape[-2], :] = piece
        self.shared = self._read(start)
        self._hold(CacheStorage(kv, start))


class SizedCache(Protocol):
    """A cache of any kind."""

    @property
    def nbytes(self) -> int: ...


def total_cache_bytes(caches: Iterable[SizedCache]) -> int:
    """Bytes that several caches hold together: what they share counts once."""
    seen = dict[int, int]()
    total = 0
    for cache in caches:
        if isinstance(cache, KVCache):
            # By identity: a storage that several caches read counts once.
            seen |= {id(s): s.kv.nbytes for s in cache.storage}
            seen |= {id(p): p.nbytes for layer in cache.packed for p in layer if p is not None}
            seen |= {id(t): t.nbytes for t in cache.repeats if t is not None}
        else:
            total += cache.nbytes
    return total + sum(seen.values())
