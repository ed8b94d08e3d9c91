"""What the process of an `apart.SubprocessWorker` runs: `python -P confined.py SCRIPT MEMORY SECONDS STACK`.

It sets its limits, loads the script, and answers each line of JSON by a line of what the script's `answer` makes of it. It
imports nothing beyond the standard library itself, so that it starts quickly and stays small.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

KEPT = 4 << 20
"""Bytes that it may have grown by before it gives back what is free of them."""


def main(script: str, memory: int, seconds: float, stack: int) -> None:
    """Answer lines of JSON until there are no more.

    Args:
        script: File that defines `answer`.
        memory: Bytes of address space.
        seconds: Seconds of computing for one line.
        stack: Bytes of stack; 0: as it is.
    """
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing but answers goes there
    # Limits come first: the script itself is not trusted with more.
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        *(((resource.RLIMIT_STACK, stack),) if stack else ()),
    ):
        with suppress(ValueError, OSError):  # a system without this limit has the others
            resource.setrlimit(kind, (limit, limit))
    sys.path.insert(0, str(Path(__file__).parents[2]))
    importlib.import_module("polydec")  # the same as the caller's, whichever else is installed
    del sys.path[0]
    # The script runs once; its `answer` serves every line.
    answer: Callable[[dict[str, Any]], dict[str, Any]] = runpy.run_path(script)["answer"]
    resident = process_memory_bytes(1)
    for line in sys.stdin.buffer:
        # nobody catches its signal: it ends the process, whatever runs
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            # What fails in an orderly way is answered; everything else ends the process.
            reply = answer(json.loads(line))
        except (MemoryError, RecursionError):
            reply = {"error": "what it is given is too long, or nested too deeply"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(reply).encode() + b"\n")
        answers.flush()
        # Memory that the last answer needed goes back to the system.
        if process_memory_bytes(1) > resident + KEPT:
            give_back()
            resident = process_memory_bytes(1)
        if (
            2 * process_memory_bytes() > memory
        ):  # the next request starts anew, and has as much room as the first
            return


def give_back() -> None:
    """Give back what the C library keeps of freed memory, where it can (a few milliseconds)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def process_memory_bytes(which: int = 0) -> int:
    """Bytes of this process's address space; which 1: of what it has in memory. 0 where the system
    does not tell.
    """
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[which])
        return pages * resource.getpagesize()
    return 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
