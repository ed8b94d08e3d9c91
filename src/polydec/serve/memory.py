"""Memory that large requests took, given back to the system.

The C library keeps what is freed, an arena for each thread: behind requests of megabytes, read in many threads, that is a
quarter of what the server needs, and it stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polydec.base.confined import give_back

EVERY = 10.0
"""Seconds between two looks at whether there is something to give back."""


async def giving_back(asked: Callable[[], int]) -> None:
    """Do so from time to time while requests come. asked: how many have come so far."""
    before = 0
    while True:
        await asyncio.sleep(EVERY)
        now = asked()
        if now != before:
            before = now
            await asyncio.to_thread(give_back)
