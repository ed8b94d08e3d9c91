"""Keys and values of one sequence. It has one owner, a session, and five verbs: stage, commit, truncate, fork, nbytes."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polydec.models.pages import advise


class Cache:
    """Slots [0, length) are committed, one a position; the staged tree lies behind them, one slot a node.

    `parent[j]` is the staged offset of the predecessor of staged entry j, or -1 where that is the last committed one.
    A pass writes the slots of its own tokens; whoever stages them makes the room. Storage: [..., slots, head], any
    number of leading axes (layers, 2, kv heads here).
    """
    __slots__ = ("_owners", "address", "capacity", "kv", "length", "parent")

    def __init__(self, kv: Tensor, length: int = 0) -> None:
        self.kv, self.length, self.parent = kv, length, list[int]()
        self.capacity, self.address = kv.shape[-2], kv.data_ptr()     # at hand: a pass asks for them
        self._owners = [1]                        # how many caches share this storage; one list for all of them

    @property
    def end(self) -> int:
        """The first free slot."""
        return self.length + len(self.parent)

    def stage(self, parent: Sequence[int]) -> int:
        """Room for a tree (or more of the staged one); the slot of its first node."""
        first = self.length + len(self.parent)
        need = first + len(parent)
        if self._owners[0] > 1 or need > self.capacity:
            size = self.capacity if need <= self.capacity else max(need, 2 * self.capacity)
            kv = advise(self.kv.new_empty(*self.kv.shape[:-2], size, self.kv.shape[-1]))
            kv[..., :first, :] = self.kv[..., :first, :]
            self._owners[0] -= 1
            self.kv, self.capacity, self.address, self._owners = kv, size, kv.data_ptr(), [1]
        self.parent += parent
        return first

    def commit(self, path: Sequence[int]) -> None:
        """Keep these staged entries (a path from the tip, ascending), drop the other staged ones."""
        if path and path[-1] != len(path) - 1:
            moved = next(i for i, j in enumerate(path) if i != j)
            index = torch.tensor(path[moved:], device=self.kv.device) + self.length
            kept = self.kv.index_select(-2, index)
            if self._owners[0] > 1:               # entries are about to move under a twin: take a copy first
                self.stage(())
            self.kv[..., self.length + moved:self.length + len(path), :] = kept
        self.length += len(path)
        self.parent = []

    def truncate(self, length: int) -> None:
        """Forget what is staged and every committed slot from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length is {length}: it must lie in 0 to {self.length}, the committed entries")
        self.length, self.parent = length, []

    def fork(self) -> Cache:
        """A twin over the same storage; the first of the two to write takes a copy."""
        twin = Cache(self.kv, self.length)
        twin.parent, twin._owners = list(self.parent), self._owners
        self._owners[0] += 1
        return twin

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes
