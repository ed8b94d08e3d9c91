"""Work that may crash, loop or take gigabytes, in a process of its own.

Chat templates and constraints are programs of strangers, and no check of their text tells what they will do to whoever runs
them. So they run in long-lived workers whose limits the system keeps: what goes too far ends the worker, never this process,
and costs one request. A worker starts when it is first asked (some tenths of a second), and anew where it ended; from then on
it costs two pipes, about a tenth of a millisecond a request.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from polydec.base.errors import RequestError

PATIENCE = 30.0
"""Seconds of waiting: for a machine that is busy otherwise."""

TOO_DEEP = frozenset(
    -getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS") if hasattr(signal, name)
)
"""How a process ends that ran out of its stack, or of memory inside a library."""


class WorkerEndedError(RequestError):
    """The worker ended over a request.

    Args:
        why: The sentence of the error.
        again: Whether the same request may go well another time.
    """

    def __init__(self, why: str, again: bool) -> None:
        super().__init__(why)
        self.again = again


class WorkerBusyError(RequestError):
    """As many requests wait for the worker as may (see `few_waiting`)."""


_MOST: ContextVar[int | None] = ContextVar("most that may wait", default=None)


@contextmanager
def few_waiting(most: int) -> Iterator[None]:
    """Refuse requests to a worker, inside this context, where too many others wait for it already.

    Args:
        most: How many may wait; one more gets WorkerBusyError.
    """
    before = _MOST.set(most)
    try:
        yield
    finally:
        _MOST.reset(before)


@dataclass(frozen=True)
class SubprocessLimits:
    """Limits of a worker.

    Attributes:
        memory: Bytes of address space, its own included.
        seconds: Seconds of computing for one request.
        stack: Bytes of stack; None: as this process has it.
        answer: Most bytes of an answer. Default 128 MiB.
    """

    memory: int
    seconds: float
    stack: int | None = None
    answer: int = 128 << 20


class SubprocessWorker:
    """A process that answers lines of JSON by what a script's `answer` gives (see `confined.py`).
    One serves all threads: they take turns.

    Args:
        script: The script.
        limits: What the worker may use.
        what: What it works on, in words, for errors.
    """

    def __init__(self, script: Path, limits: SubprocessLimits, what: str) -> None:
        self.script = script
        self.limits = limits
        self.what = what
        self._lock = Lock()
        self._counting = Lock()
        self._waiting = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        atexit.register(self.stop)

    def ask_worker(self, request: bytes) -> dict[str, Any]:
        """Send a line of JSON to the worker, and wait for its answer.

        Args:
            request: The line, with its line end.

        Returns:
            The answer, read from JSON.

        Raises:
            WorkerEndedError: The worker ended over the request.
            WorkerBusyError: Too many requests wait.
            RequestError: The worker does not start.
        """
        with self._turn():
            if self._owner != os.getpid():  # after a fork the parent's worker is the parent's
                self._process = None
            # A worker that had ended before the request is started once more.
            for _ in range(2):
                process = self._running()
                try:
                    answer = self._send(process, request)
                except BaseException:  # an interrupt: an answer would be left in the pipe
                    self.stop()
                    raise
                if answer is not None:
                    return json.loads(answer)
                ended = self.stop()
                # 0: it had ended before the request, as its terminal's processes were
                if ended != 0:
                    raise WorkerEndedError(self._why(ended), again=ended == -signal.SIGKILL)
            raise RequestError("its process does not start")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for one's turn, if one more may."""
        most = _MOST.get()
        # Waiting requests are counted with a lock of their own: the worker may be busy for seconds.
        with self._counting:
            if most is not None and self._waiting >= most:
                raise WorkerBusyError(
                    f"{self._waiting} wait for their turn already: ask again soon"
                )
            self._waiting += 1
        try:
            self._lock.acquire()
        finally:
            # It no longer waits: it has the lock, or was interrupted.
            with self._counting:
                self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            # -P leaves the folder of the script out of the import path.
            command = [
                sys.executable,
                "-P",
                str(Path(__file__).with_name("confined.py")),
                str(self.script),
                str(self.limits.memory),
                str(self.limits.seconds),
                str(self.limits.stack or 0),
            ]
            # what is preloaded into this process (an allocator, a sanitizer) would use up the worker's memory
            env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=env,
                    # A session of its own: Ctrl-C in the terminal does not reach the worker.
                    start_new_session=True,
                )
            except OSError as e:
                raise RequestError(f"its process does not start ({e})") from None
            self._owner = os.getpid()
        return self._process

    def _send(self, process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
        """The answer's line; None where the worker ended."""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request)
            # Nothing was answered: the worker is gone, and its pipe closed.
            process.stdin.flush()
        except OSError:
            return None
        got = bytearray()
        end = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while not got.endswith(b"\n"):
                # The system limits computing, not sleeping; a worker that hangs is ended here.
                late = not ready.select(max(0.0, end - time.monotonic()))
                if late or len(got) > self.limits.answer:
                    process.kill()
                    return None
                # End of file: the worker ended before its line did.
                if not (piece := os.read(process.stdout.fileno(), 1 << 20)):
                    return None
                got += piece
        return bytes(got)

    def stop(self) -> int:
        """End the process, which may start again later; its exit code."""
        process = self._process
        self._process = None
        # After a fork the process belongs to the parent: it may not be stopped from here.
        if process is None or self._owner != os.getpid():
            return 0
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            # The worker ends by itself when its input does; most take less than a second.
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _why(self, code: int) -> str:
        # The timer of the worker sends SIGPROF; the system sends SIGKILL where it is out of memory.
        if code == -signal.SIGPROF:
            return f"it computes for more than {self.limits.seconds:g} seconds"
        if code == -signal.SIGKILL:
            return f"it takes more time or memory than {self.what} may"
        if code in TOO_DEEP:
            return f"it is nested too deeply, or takes more memory than {self.what} may"
        return f"it brings its process down (exit code {code})"
