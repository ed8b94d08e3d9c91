"""Chat templates: Jinja with the names that Hugging Face templates expect, in a sandbox and in a process of its own.

A template is a program that comes with a checkpoint. Jinja's sandbox keeps it from Python's insides, but not from using up time
and memory: one filter can write a gigabyte inside a single C call, a deeply nested expression takes Python's own compiler down,
and no check of the source tells such a template from an honest one. So all of them run in one long-lived worker, whose limits
the system keeps: what goes too far ends the worker, never this process. The worker takes a tenth of a second to start, when the
first template is rendered; from then on it costs two pipes, about a tenth of a millisecond a chat.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from polydec.models.edge import sentence

MEMORY = 512 << 20
"""Bytes of address space that a template may use, the worker's own included."""
SECONDS = 2.0
"""Of computing, for one rendering."""
PATIENCE = 30.0
"""Seconds of waiting: for a machine that is busy otherwise."""
MOST = 16 << 20
"""Characters of a rendered chat, and of its messages as JSON."""


class Worker:
    """The process that renders. One for all templates; started when needed, and anew where it ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: bytes) -> dict[str, str]:
        """What the worker answers to a line of JSON. Raises ValueError where it does not."""
        with self._lock:
            if self._owner != os.getpid():  # after a fork the parent's worker is the parent's
                self._process = None
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
                if (
                    ended != 0
                ):  # 0: it had ended before the request, as its terminal's processes were
                    raise ValueError(_why(ended))
            raise ValueError("its process does not start")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [
                sys.executable,
                "-P",
                str(Path(__file__).with_name("render.py")),
                str(MEMORY),
                str(SECONDS),
                str(MOST),
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
                    start_new_session=True,
                )
            except OSError as e:
                raise ValueError(f"its process does not start ({e})") from None
            self._owner = os.getpid()
        return self._process

    @staticmethod
    def _send(process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
        """The answer's line; None where the worker ended."""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except OSError:
            return None
        got, end = bytearray(), time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while not got.endswith(b"\n"):
                if not ready.select(max(0.0, end - time.monotonic())) or len(got) > 8 * MOST:
                    process.kill()
                    return None
                if not (piece := os.read(process.stdout.fileno(), 1 << 20)):
                    return None
                got += piece
        return bytes(got)

    def stop(self) -> int:
        """End the process, which may start again later; its exit code."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return 0
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _why(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"it computes for more than {SECONDS:g} seconds"
    if code == -signal.SIGKILL:
        return "it takes more time or memory than a chat template may"
    return f"it brings its process down (exit code {code})"


_WORKER = Worker()
atexit.register(_WORKER.stop)


@dataclass(frozen=True)
class Template:
    """source: the template's text. Compiled when first used."""

    source: str

    def render(self, values: Mapping[str, Any]) -> str:
        """values: names that the template may use; numbers, texts, lists and dicts as JSON has them. Raises ValueError where
        the template is malformed, refuses the messages, or goes beyond the limits above."""
        try:
            request = json.dumps({"source": self.source, "values": dict(values)}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as e:
            raise ValueError(
                sentence(f"the chat's messages and names must be what JSON can hold: {e}")
            ) from None
        if len(request) > MOST:
            raise ValueError(
                f"the chat has {len(request)} bytes with its template: {MOST} are legal"
            )
        try:
            answer = _WORKER.ask(request)
        except ValueError as e:
            answer = {"error": str(e)}
        if "error" in answer:
            raise ValueError(
                sentence(f"the chat template refuses these messages: {answer['error']}")
            )
        return answer["text"]
