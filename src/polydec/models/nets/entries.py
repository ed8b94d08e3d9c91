"""A cache whose entries are values of any kind, for networks that keep no keys and values a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class EntryCache(Generic[T]):
    """A cache of one value an entry, with the verbs of `polydec.models.nets.kv_cache.KVCache`.

    Values are never changed, so forks share them.

    Attributes:
        text: What each entry holds; None where nothing was fed yet.
        length: Number of committed entries.
        parent: Of each staged entry the offset of the staged entry that it follows; -1: the last
            committed one.
    """

    def __init__(self) -> None:
        self.text = list[T | None]()
        self.length = 0
        self.parent = list[int]()

    @property
    def end(self) -> int:
        """The first free slot."""
        return self.length + len(self.parent)

    def slot_before(self, slot: int) -> T | None:
        """The entry that a slot follows: the one before a committed slot, the parent of a staged
        one; None: there is none."""
        if slot < self.length:
            at = slot - 1
        else:
            # A parent of -1 gives the last committed slot, or -1 in an empty cache.
            at = self.length + self.parent[slot - self.length]
        if at >= 0:
            return self.text[at]
        return None

    def stage_slots(self, parent: Sequence[int]) -> int:
        first = self.end
        self.parent += parent
        self.text += [None] * len(parent)
        return first

    def reserve_slots(self, need: int) -> None:
        """There is always room."""

    def claim_slots(self, first: int) -> None:
        """Forks share values, not slots."""

    def commit_path(self, path: Sequence[int]) -> None:
        self.keep_path(path, ())

    def keep_path(self, path: Sequence[int], stay: Sequence[int]) -> None:
        """Commit a path of the staged entries, and keep others staged.

        Args:
            path: Offsets of the staged entries that are committed, ascending from the committed
                text on.
            stay: Offsets of those that stay staged, ascending; all others are dropped.
        """
        # One list has committed and staged entries, in the order of the slots.
        self.text[self.length :] = [self.text[self.length + j] for j in (*path, *stay)]
        # Offsets count from the committed text on, which has just grown: those of `stay` begin at 0
        # again, and a parent on the path becomes -1.
        new = {j: i for i, j in enumerate(stay)}
        parent = [new.get(self.parent[j], -1) for j in stay]
        self.length = self.length + len(path)
        self.parent = parent

    def truncate_entries(self, length: int) -> None:
        del self.text[length:]
        self.length = length
        self.parent = []

    def fork(self, length: int | None = None) -> EntryCache[T]:
        twin = EntryCache[T]()
        twin.text = list(self.text)
        twin.length = self.length
        twin.parent = list(self.parent)
        if length is not None:
            twin.truncate_entries(length)
        return twin

    @property
    def nbytes(self) -> int:
        return sum(getattr(entry, "nbytes", 8) for entry in self.text)
