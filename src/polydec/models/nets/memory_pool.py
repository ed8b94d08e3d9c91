"""Large pieces of memory that are used again: what the system gives anew has to be zeroed first,
page by page.

Where the system is a virtual machine, it has to be found first as well: huge pages were seen to
take 30 to 110 ms for 50 MB.
"""

from __future__ import annotations

import os
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from polydec.models.nets.huge_pages import advise_huge_pages

LARGE = 1 << 20
"""Bytes from which on a piece is worth keeping."""
LEAST = 1 << 28
"""Bytes that may wait on any machine."""
ADVISED = 1 << 25
"""Bytes from which on a new piece asks for huge pages. Caches of short answers are smaller: they
would wait for pages that they never write (62 ms in place of 3 for 24 MB in a virtual machine)."""
SHARE = 16
"""Of a machine's memory the part that may wait: eight answers of SmolLM2-135M behind some 300
tokens take 300 MB."""


class MemoryPool:
    """Gives out memory, and takes it back by itself once no tensor reads it any more, views
    included.

    It may be used from several threads.

    Attributes:
        kept: Bytes that may wait for the next one.
    """

    __slots__ = ("_free", "_looks", "kept")

    def __init__(self, kept: int) -> None:
        # By id, the one that came back first in front, each with the count of looks at which it
        # came back.
        self._free = dict[int, tuple[np.ndarray, int]]()
        self._looks = 0
        self.kept = kept

    @property
    def nbytes(self) -> int:
        """Bytes that wait."""
        return sum(piece.nbytes for piece, _ in list(self._free.values()))

    def release_idle(self) -> None:
        """Give up what has waited since before the last call, and was not taken in between.

        Called from time to time, it leaves what is in use again and again, and gives the rest back
        to the system: what one large request took is not held for good.
        """
        self._looks += 1
        for key, (_, came) in list(self._free.items()):
            if came < self._looks - 1:
                # Another thread may have taken it meanwhile.
                self._free.pop(key, None)

    def take_bytes(self, size: int) -> Tensor:
        """So many bytes (uint8), whatever stands in them."""
        piece = self._fitting(size)
        if piece is None:
            # Not `np.empty`, which asks for huge pages from 4 MB on: the system then finds and zeroes
            # the whole piece at once, however little of it is written.
            fresh = torch.empty(size, dtype=torch.uint8)
            piece = (advise_huge_pages(fresh) if size >= ADVISED else fresh).numpy()
        # The piece goes back into the pool when the array `lent` dies, that is with the last tensor
        # over it.
        lent = piece[:size]  # the tensor, and every view of it, keeps this alive, not the piece
        finalize(lent, self._give, piece).atexit = False
        return torch.from_numpy(lent)

    def _fitting(self, size: int) -> np.ndarray | None:
        """The smallest that is large enough, and not more than twice as large."""
        fit = [p for p, _ in list(self._free.values()) if size <= p.nbytes <= 2 * size]
        best = min(fit, key=lambda p: p.nbytes, default=None)
        # `pop` decides where two threads want the same one: who comes second asks the system
        if best is None:
            return None
        taken = self._free.pop(id(best), None)
        return None if taken is None else taken[0]

    def _give(self, piece: np.ndarray) -> None:
        # A dict keeps the order in which pieces came back: the oldest is given up first.
        self._free[id(piece)] = piece, self._looks
        for key in list(self._free):
            if self.nbytes <= self.kept:
                return
            self._free.pop(key, None)


def _kept() -> int:
    """Bytes that may wait on this machine."""
    try:
        return max(LEAST, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE)
    except (AttributeError, OSError, ValueError):  # the system does not say
        return LEAST


POOL = MemoryPool(_kept())


def empty_pooled_tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a tensor without setting its numbers, as `torch.empty` does.

    A large piece on the CPU is one that was used before, where there is such a piece.

    Args:
        shape: Shape of the tensor.
        dtype: Number type.
        device: Where it lies; only memory of the CPU is pooled.

    Returns:
        A contiguous tensor with any numbers in it.
    """
    count = 1
    for n in shape:
        count *= n
    if device.type != "cpu" or count * dtype.itemsize < LARGE:
        return torch.empty(shape, dtype=dtype, device=device)
    return POOL.take_bytes(count * dtype.itemsize).view(dtype).view(shape)
