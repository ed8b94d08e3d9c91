"""What happens to the requests of a server, written to one trace as it happens."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Any

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.core.scheduler import RequestPass
from polydec.core.trace import OpenedEvent, TraceEvent, to_json
from polydec.request.engine import Ticket
from polydec.request.loaded import LoadedModel
from polydec.request.request_records import pass_events, trace_header
from polydec.serve.steps import StepObserver

MOST = 1 << 30
"""Bytes of a trace: clients decide how much happens, and a disk is no smaller for it."""

log = logging.getLogger("polydec.serve")


class ServerTrace:
    """One trace file for all models.

    Requests are numbered from 0 in the order in which they are checked; seconds count from the
    trace's beginning. Where the disk is full or `most` bytes are written, one line of the log says
    so, and nothing more is written: no request suffers from that.

    Args:
        path: The file, which is written anew.
        most: Bytes that it may have.

    Raises:
        RequestError: The file cannot be written.
    """

    def __init__(self, path: Path, most: int = MOST) -> None:
        try:
            # Prompts stand in the trace: nobody but its owner may read it.
            at = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            self._file = os.fdopen(at, "w", buffering=1, encoding="utf-8")
        except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
            why = getattr(error, "strerror", None) or error
            raise RequestError(
                error_sentence(f"trace {str(path)!r} cannot be written: {why}")
            ) from None
        self.lock = RLock()
        self.begun = perf_counter()
        self._left = most
        self._requests = 0

    def watch_request(self, lm: LoadedModel, steps: StepObserver | None) -> ServerTraceObserver:
        """Make the observer of the next request.

        Args:
            lm: The model that answers it.
            steps: An observer that gets its events as well. None: there is none.

        Returns:
            The observer.
        """
        with self.lock:
            self._requests += 1
            return ServerTraceObserver(self, self._requests - 1, lm, steps)

    def write_line(self, line: dict[str, Any]) -> None:
        """Write a line, while there is room.

        Args:
            line: The line as an object.
        """
        with self.lock:
            if self._left <= 0:
                return
            text = json.dumps(line) + "\n"
            self._left -= len(text)
            try:
                if self._left <= 0:
                    raise OSError("it has reached its size")
                self._file.write(text)
            except OSError as error:
                self._left = 0
                log.error("the trace ends here: %s", error)

    def close(self) -> None:
        """Nothing is written behind this."""
        with self.lock:
            self._left = 0
            with suppress(OSError):  # what is left of a line that a full disk did not take
                self._file.close()


class ServerTraceObserver:
    """An observer of one request.

    Events wait until its ticket is there, whose method stands beside the opening.

    Args:
        trace: The file.
        number: Number of the request.
        lm: The model that answers it.
        steps: An observer that gets its events as well. None: there is none.
    """

    def __init__(
        self, trace: ServerTrace, number: int, lm: LoadedModel, steps: StepObserver | None
    ) -> None:
        self._trace = trace
        self._number = number
        self._lm = lm
        self._steps = steps
        self._opening: dict[str, Any] | None = None
        self._waiting = list[TraceEvent]()

    def __call__(self, event: TraceEvent) -> None:
        if self._steps is not None and isinstance(event, self._steps.kinds):
            self._steps(event)
        with self._trace.lock:
            self._waiting.append(event)
            self._write()

    def note_begin(self, ticket: Ticket) -> None:
        """Note that the request was taken.

        Args:
            ticket: Its ticket.
        """
        with self._trace.lock:
            self._opening = {"method": ticket.method, "trace": trace_header(self._lm, ticket)}
            self._write()

    def note_passes(self, passes: Sequence[RequestPass]) -> None:
        """Note passes that the request took part in.

        Args:
            passes: The passes.
        """
        with self._trace.lock:
            self._waiting += pass_events(self._lm, passes, self._trace.begun)
            self._write()

    def _write(self) -> None:
        # The first events come while the request is submitted, before its ticket is returned.
        if self._opening is None:
            return
        for event in self._waiting:
            if isinstance(event, OpenedEvent):
                more = self._opening
            else:
                more = {}
            self._trace.write_line({**to_json(event), "request": self._number, **more})
        self._waiting.clear()
