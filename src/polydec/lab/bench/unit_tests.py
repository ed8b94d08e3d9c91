"""Whether a program passes its tests: a script for `base.apart.SubprocessWorker`. Each program runs
in a child that ends with it, so that none can change what the next one finds."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import time
from contextlib import suppress
from typing import Any

SECONDS = 4
"""Of computing, for a program and its tests; twice as many by the clock."""
MEMORY = 1 << 30
"""Bytes of address space."""


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """{"passed": whether all tests ran to their end}, of {"program", "tests"}."""
    heard, verdict_end = os.pipe()
    # Only who knows this word can report success: the program cannot guess it before it runs.
    word = secrets.token_bytes(16)
    child = os.fork()
    if child == 0:
        # The child holds the writing end only, and the parent the reading end.
        os.close(heard)
        _run(asked["program"], asked["tests"], verdict_end, word)
    os.close(verdict_end)
    end = time.monotonic() + 2 * SECONDS
    # The limit on computing does not stop a program that sleeps: this one goes by the clock.
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.005)
    with suppress(ProcessLookupError, PermissionError):  # what the program may have left running
        os.killpg(child, signal.SIGKILL)
    # A grandchild may hold the pipe open: reading must not wait for its end.
    os.set_blocking(heard, False)
    try:
        passed = os.read(heard, len(word)) == word
    except BlockingIOError:
        passed = False
    os.close(heard)
    return {"passed": passed}


def _run(program: str, tests: str, verdict_end: int, word: bytes) -> None:
    """What the child does. That it ends well proves nothing, as a program may end it: the word
    does."""
    try:
        # A group of its own, so that the parent can kill whatever the program starts.
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        scope: dict[str, Any] = {"__name__": "program"}
        # The tests run in the program's own scope, as they call its functions by name.
        exec(compile(program, "program", "exec"), scope)
        exec(compile(tests, "tests", "exec"), scope)
        os.write(verdict_end, word)
    except BaseException:
        os._exit(1)
    os._exit(0)
