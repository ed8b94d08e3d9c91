"""What every worker of benchmarks/engine_table.py does: it opens an engine, and answers each line of JSON with one.

A worker runs in its engine's own environment: this file and the workers need nothing but the standard library and that engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypedDict


class WorkerPrompt(TypedDict):
    """A prompt in both forms: engines that take no token ids encode the text."""

    ids: list[int]
    text: str


class WorkerEngine(Protocol):
    """A loaded model.

    Attributes:
        version: The engine's name and version.
    """

    version: str

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        """Write one greedy answer to each prompt, all of them in flight together.

        Args:
            prompts: One or more.
            tokens: Length of each answer; the end of text ends none.

        Returns:
            Of each answer its token ids, or their number where the engine tells no more.
        """
        ...


def peak_megabytes() -> int:
    """The most memory that this process has held; what it maps of files counts, too."""
    # getrusage would count what the parent process held when it started this one.
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    # Linux counts kilobytes.
    return int(peak.split()[1]) // 1024


def serve_lines(open_engine: Callable[[dict[str, Any]], WorkerEngine]) -> None:
    """Open the engine by the first line's settings, then answer one line after the other.

    Args:
        open_engine: From `files` (paths by format), `format`, `mode` and `threads` to the engine.
    """
    # Engines print on standard output: what they say goes to standard error, and the answers get
    # a file of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(fields: dict[str, Any]) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        engine = open_engine(json.loads(sys.stdin.readline()))
    except Exception as error:  # whatever this engine meets
        say({"error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"})
        return
    say({"version": engine.version, "memory": peak_megabytes()})
    for line in sys.stdin:
        task = json.loads(line)
        began = time.perf_counter()
        try:
            written = engine.write_answers(task["prompts"], task["tokens"])
        except Exception as error:  # whatever this engine meets
            say({"error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"})
            continue
        seconds = time.perf_counter() - began
        say({"seconds": seconds, "written": written, "memory": peak_megabytes()})
