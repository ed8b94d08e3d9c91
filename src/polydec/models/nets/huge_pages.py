"""Huge pages for packed weights: a pass streams through them, and crossing small pages costs it a
tenth of its time."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from torch import Tensor

HUGE = 1 << 21
DROP, ADVISE, COLLAPSE = 4, 14, 25  # MADV_DONTNEED, MADV_HUGEPAGE, MADV_COLLAPSE (Linux 6.1)
Region = tuple[int, int]  # first address, and the one after the last


def anonymous_memory_regions() -> list[Region]:
    """Writable anonymous memory of this process; empty where the system does not say."""
    try:
        lines = [x.split() for x in Path("/proc/self/maps").read_text().splitlines()]
    except OSError:
        return []
    # A line of /proc/self/maps without a sixth column has no file behind it.
    bounds = [
        x[0].split("-")
        for x in lines
        if x[1].startswith("rw") and (len(x) == 5 or x[5] == "[heap]")
    ]
    return [(int(a, 16), int(b, 16)) for a, b in bounds]


def mapped_file_regions(ending: str) -> list[Region]:
    """Find where files with a given name ending are mapped into this process.

    Args:
        ending: End of the file's path, such as ``".safetensors"``.

    Returns:
        Private mappings of such files; empty where the system does not say.
    """
    try:
        lines = [x.split(maxsplit=5) for x in Path("/proc/self/maps").read_text().splitlines()]
    except OSError:
        return []
    # The fourth letter of the permissions is "p" for a private mapping: its pages are not shared
    # with other writers, and the file has them still.
    bounds = [
        x[0].split("-")
        for x in lines
        if len(x) == 6 and x[1].endswith("p") and x[5].endswith(ending)
    ]
    return [(int(a, 16), int(b, 16)) for a, b in bounds]


def release_mapped_pages(areas: Iterable[Region]) -> None:
    """Give back the pages of mapped files that nobody writes to: reading them again reads the file
    again."""
    if (call := _madvise()) is not None:
        for a, b in areas:
            call(a, b - a, DROP)


def subtract_regions(areas: Iterable[Region], others: Iterable[Region]) -> list[Region]:
    """Cut some regions out of others.

    Args:
        areas: Regions to keep.
        others: Regions to cut out of them; they may overlap anything.

    Returns:
        The parts of `areas` that lie in none of `others`.
    """
    out = list(areas)
    for a, b in others:
        # What is left of [p, q) without [a, b) is a part before a and a part from b on; either may
        # be empty.
        out = [(x, y) for p, q in out for x, y in ((p, min(q, a)), (max(p, b), q)) if x < y]
    return out


def advise_huge_pages(memory: Tensor) -> Tensor:
    """The same tensor; what is written to it first will stand in huge pages where the system has
    them."""
    if (
        memory.device.type == "cpu"
        and memory.nbytes >= 2 * HUGE
        and (call := _madvise()) is not None
    ):
        # The advice holds for whole huge pages only: the begin is rounded up, the end down.
        a = -(-memory.data_ptr() // HUGE) * HUGE
        b = (memory.data_ptr() + memory.nbytes) // HUGE * HUGE
        call(a, b - a, ADVISE)
    return memory


@lru_cache
def _madvise() -> Callable[[int, int, int], int] | None:
    try:
        call = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return call


def collapse_huge_pages(areas: Iterable[Region], seconds: float = 0.4, threads: int = 2) -> int:
    """Move memory to huge pages, the largest regions first, until the time is up.

    Does nothing where the system cannot.

    Args:
        areas: Regions of memory that already holds data.
        seconds: Time limit; work that has begun is finished. Default 0.4.
        threads: How many threads ask the system at once. Default 2.

    Returns:
        The number of bytes that were moved.
    """
    # Sorted by begin minus end, so the largest region comes first.
    whole = sorted(
        ((-(-a // HUGE) * HUGE, b // HUGE * HUGE) for a, b in areas), key=lambda r: r[0] - r[1]
    )
    # Small parts keep the threads busy, and let the time limit be noticed between two of them.
    parts = [(x, min(x + 8 * HUGE, b)) for a, b in whole for x in range(a, b, 8 * HUGE)]
    madvise = _madvise()
    if madvise is None:
        return 0
    end = time.monotonic() + seconds

    def move_pages(part: Region) -> int:
        a, b = part
        if time.monotonic() > end or madvise(a, b - a, ADVISE) or madvise(a, b - a, COLLAPSE):
            return 0
        return b - a

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(move_pages, parts))
