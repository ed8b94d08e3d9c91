"""When a command looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, and exempt what is made meanwhile from it for good.

    Libraries and models stay until the command ends. A collection would walk over them again and
    again, which is a tenth of what a short answer costs.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if on:
            gc.enable()
