"""Memory that large requests took, given back to the system.

Four things keep it otherwise. The C library has an arena for each thread that reads requests, and of all but the first it
keeps what was freed at the end: `one_arena` leaves it the first, and large pieces out of it. Objects that know one another
stay until Python looks for them, and it looks when they are many, not when they are large: `giving_back` looks from time to
time. The pool of large pieces keeps those of caches that ended for the next ones: `giving_back` leaves it what is used again
and again. And the C library gives back what is free only where somebody asks for it: so does `giving_back`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress

from polydec.base.confined import give_back

EVERY = 10.0
"""Seconds between two looks at whether there is something to give back."""
_ARENA_MAX = -8
_MMAP_THRESHOLD = -3
_TRIM_THRESHOLD = -1
"""The C library's names of how many arenas it has, of the size from which a piece of memory is taken from the system by itself,
and of how much may lie free at the arena's end."""

LARGE = 1 << 20
"""Bytes of a piece that goes back to the system as soon as it is free. Where nobody says so the C library learns a larger size
from the pieces that it sees, up to 32 MB, and the gaps that large requests leave in the arena are never whole pages again. The
pool of large pieces begins at the same size, so that none of its pieces lies in the arena either."""

FREE_AT_END = 64 << 20
"""Bytes that may lie free at the arena's end between two looks."""


def one_arena() -> None:
    """Let all threads share one arena, where the C library can: they wait for Python's lock far more than for that one. Large
    pieces stay out of it. To be called before there are threads."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, LARGE)
        library.mallopt(_TRIM_THRESHOLD, FREE_AT_END)


def freeze_garbage_collector() -> None:
    """What is there now stays: libraries and models, among which nobody needs to look for garbage (half a second each time)."""
    gc.freeze()


def _give_back() -> None:
    # Not at the top: a server starts to listen before torch is there.
    from polydec.models.nets.memory_pool import POOL

    gc.collect()
    POOL.release_idle()
    give_back()


async def giving_back(
    asked: Callable[[], int], return_memory: Callable[[], None] = _give_back
) -> None:
    """Return freed memory to the system from time to time, while requests come.

    Args:
        asked: Gives how many requests have come so far.
        return_memory: Returns the memory; it is called in a thread of its own.
    """
    before = 0
    again = False
    while True:
        await asyncio.sleep(EVERY)
        now = asked()
        came = now != before
        before = now
        # Without requests nothing was freed: an idle server stays asleep. It looks once more behind
        # the last request, which may have ended only now.
        if came or again:
            await asyncio.to_thread(return_memory)
        again = came
