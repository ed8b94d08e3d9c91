"""What became of each request: its id, and a line of JSON in a log.

The event loop puts lines into a bounded queue and never waits; a thread of its own writes them. Where that cannot keep up, or
the disk is full, lines are lost and answers are not.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any, Protocol
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError

log = logging.getLogger("polydec.serve")

REQUEST_ID = "x-request-id"
"""The header that names a request: taken from the client where it is short and printable, else made."""
STDERR = "-"
"""What stands for standard error in place of a file's name."""
WAITING = 4096
"""Lines that wait to be written; more are lost."""
LONGEST = 1 << 14
"""Characters of a text in a line, where texts are logged."""
LONGEST_PATH = 200
"""Characters of a request's path in a line: clients make up what they like."""

_FIELD = "polydec.record"
# The id goes back in a header of the answer: no spaces, and nothing that a header may not hold.
_PRINTABLE = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True)
class ResponseCounts:
    """What a response took and gave, as far as it came.

    Attributes:
        method: Decoding method.
        prompt: Tokens of its prompts.
        output: Tokens of its answers.
        written: Tokens that were written for them, those of texts that a search threw away included.
            0: no more than `output`.
        cached: Tokens of its prompts that were not fed. None: it did not end, so nobody knows.
        reasons: Why each answer ended, or why it was cut.
        first: When the first token was handed on, by `time.perf_counter`. None: none was.
        texts: The answers.
    """

    method: str | None = None
    prompt: int = 0
    output: int = 0
    cached: int | None = None
    reasons: tuple[str, ...] = ()
    first: float | None = None
    texts: tuple[str, ...] = ()
    written: int = 0

    @property
    def charged_tokens(self) -> int:
        """Tokens that a quota counts: what was computed for the client, also where little of it is answered."""
        return self.prompt + max(self.output, self.written)


class CountedAnswers(Protocol):
    """Answers that say what they took."""

    def response_counts(self) -> ResponseCounts: ...


@dataclass(eq=False)
class RequestRecord:
    """What is known of one request while it is answered.

    Attributes:
        request_id: Its id.
        verb: Its HTTP method.
        endpoint: Its path.
        texts: Whether texts are kept for the log.
        client: Name of its client, else its address; None where neither is known.
        model: Name of the model that answers; None where none does.
        counts: What it took.
        status: HTTP status of the answer; 0 before there is one.
        body: What was sent, where texts are kept.
        ask_counts: Asks another process what the answer took, into this record. None: this one
            knows.
    """

    request_id: str
    verb: str
    endpoint: str
    texts: bool = False
    client: str | None = None
    model: str | None = None
    counts: ResponseCounts = ResponseCounts()
    status: int = 0
    body: str | None = None
    ask_counts: Callable[[], Awaitable[None]] | None = None
    came: float = field(default_factory=time.time)
    began: float = field(default_factory=time.perf_counter)
    _answers: CountedAnswers | None = None
    _endings: list[Callable[[RequestRecord], None]] = field(
        default_factory=list["Callable[[RequestRecord], None]"]
    )

    def attach_answers(self, model: str, answers: CountedAnswers) -> None:
        """Note who answers.

        Args:
            model: Name of the model.
            answers: Its answers, which are asked at the end what they took.
        """
        self.model = model
        self._answers = answers

    async def collect_counts(self) -> None:
        """Ask whoever knows what the answer took, once."""
        asking = self.ask_counts
        self.ask_counts = None
        if asking is not None:
            await asking()

    def note_body(self, text: bytes) -> None:
        """Keep what was sent, where texts are kept."""
        if self.texts:
            # A character has at most four bytes in UTF-8: more than this need not be decoded.
            self.body = text[: 4 * LONGEST].decode("utf-8", "replace")[:LONGEST]

    def when_ended(self, ending: Callable[[RequestRecord], None]) -> None:
        """Have something called when the answer is over, however it went."""
        self._endings.append(ending)

    def end_record(self) -> None:
        """The answer is over: count what it took, and tell those who wait for that."""
        if self._answers is not None:
            self.counts = self._answers.response_counts()
            # Answers hold texts and caches: nothing of them stays behind.
            self._answers = None
        # Taken out first, so that none is called twice.
        endings = self._endings
        self._endings = []
        for ending in endings:
            ending(self)

    async def finish_record(self) -> None:
        """Collect what the answer took, wherever that is known, and end the record; once."""
        await self.collect_counts()
        self.end_record()

    def log_line(self) -> dict[str, Any]:
        """The line of the log, once the record has ended."""
        counts = self.counts
        now = time.perf_counter()
        at = datetime.fromtimestamp(self.came, UTC).isoformat(timespec="milliseconds")
        first = None if counts.first is None else _milliseconds(counts.first - self.began)
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "id": self.request_id,
            "client": self.client,
            "verb": self.verb,
            "endpoint": self.endpoint,
            "model": self.model,
            "method": counts.method,
            # Where no model answered, nothing was counted: null, and not zero.
            "prompt_tokens": None if self.model is None else counts.prompt,
            "output_tokens": None if self.model is None else counts.output,
            "cached_tokens": counts.cached,
            "first_token_ms": first,
            "total_ms": _milliseconds(now - self.began),
            "finish_reasons": list(counts.reasons),
            "status": self.status,
        }
        if self.texts:
            line["request"] = self.body
            line["answers"] = [text[:LONGEST] for text in counts.texts]
        return line


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; an empty one where nobody records."""
    record = scope.get(_FIELD)
    if record is None:
        # Kept in the scope, so that all who ask write into the same one.
        record = scope[_FIELD] = RequestRecord("", scope.get("method", ""), scope.get("path", ""))
    return record


def choose_request_id(sent: str) -> str:
    """The id of a request: what its client sent where that is short and printable, else a new one."""
    if _PRINTABLE.fullmatch(sent):
        return sent
    return f"req-{uuid4().hex}"


class CountsNotes(Protocol):
    """Keeps what requests took for whoever asks for it."""

    def begin_request(self, name: str) -> None: ...
    def end_request(self, name: str, record: RequestRecord) -> None:
        """Keep what a request took.

        Args:
            name: What its header calls it.
            record: Its record, which has ended.
        """
        ...


class RequestRecorder:
    """The layer around everything else: it names each request, and logs what became of it.

    Args:
        app: What lies behind it.
        request_log: Where lines go. None: nowhere.
        notes: Who else is told what each request took, by the header `counts_header`. None: nobody.
        counts_header: The header in which a request says what `notes` call it.
    """

    def __init__(
        self,
        app: ASGIApp,
        request_log: RequestLog | None = None,
        notes: CountsNotes | None = None,
        counts_header: str = "",
    ) -> None:
        self.app = app
        self.request_log = request_log
        self.notes = notes
        self.counts_header = counts_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The start and the end of the application pass through here as well.
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = RequestRecord(
            choose_request_id(Headers(scope=scope).get(REQUEST_ID, "")),
            scope["method"],
            scope["path"][:LONGEST_PATH],
            self.request_log is not None and self.request_log.texts,
        )
        scope[_FIELD] = record
        name = ""
        if self.notes is not None:
            name = Headers(scope=scope).get(self.counts_header, "")
            self.notes.begin_request(name)
            record.when_ended(partial(self.notes.end_request, name))
        marked = (REQUEST_ID.encode(), record.request_id.encode())

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                # A copy: the message belongs to whoever sent it.
                message = {**message, "headers": [*message.get("headers", ()), marked]}
            elif not message.get("more_body", False):
                # Before the client has the end: its next request counts with this one.
                await record.finish_record()
            await send(message)

        try:
            await self.app(scope, receive, send_marked)
        except BaseException:
            # What answers a fault of the server stands outside of this layer.
            record.status = record.status or 500
            raise
        finally:
            # Also where the client has left: quotas count what was written until then.
            await record.finish_record()
            if self.request_log is not None:
                self.request_log.put_line(record.log_line())


class RequestLog:
    """A file, or standard error, to which a thread writes a line of JSON for each request.

    A file is only added to, so that it may be truncated by others; one that was moved away is made
    anew.

    Args:
        target: The file; ``-`` is standard error.
        texts: Whether lines hold what was asked and answered. Default False.
        waiting: Lines that wait to be written; more are lost.

    Attributes:
        texts: Whether lines hold texts.
        lost: Lines that were not written.

    Raises:
        RequestError: The file cannot be written.
    """

    def __init__(self, target: str, texts: bool = False, waiting: int = WAITING) -> None:
        self.texts = texts
        self.lost = 0
        self._path = None if target == STDERR else target
        # The descriptor of standard error.
        self._at = 2
        if self._path is not None:
            try:
                self._at = _opened(self._path)
            except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
                why = getattr(error, "strerror", None) or error
                raise RequestError(
                    error_sentence(f"request_log {target!r} cannot be written: {why}")
                ) from None
        self._lines = Queue[Mapping[str, Any] | None](waiting)
        self._warned = False
        self._torn = False  # the last line is not whole
        # A daemon: a disk that hangs must not keep the process from its end.
        self._thread = Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def put_line(self, line: Mapping[str, Any]) -> None:
        """Have a line written, unless too many wait. It never blocks.

        Args:
            line: The line as an object.
        """
        try:
            self._lines.put_nowait(line)
        except Full:
            self._lose("lines come faster than they can be written")

    def close_log(self, seconds: float = 2.0) -> None:
        """Write what waits, and end.

        Args:
            seconds: The longest wait for that. Default 2.
        """
        # None is the sign to end; where even that finds no room, the thread is left behind.
        with suppress(Full):
            self._lines.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _run(self) -> None:
        """In the log's thread."""
        while (line := self._lines.get()) is not None:
            text = json.dumps(line) + "\n"
            # Lines that wait already go out with it: one call of the system for many.
            end = False
            while len(text) < 1 << 16 and not end:
                try:
                    more = self._lines.get_nowait()
                except Empty:
                    break
                end = more is None
                text += "" if more is None else json.dumps(more) + "\n"
            self._write(text.encode())
            if end:
                break
        if self._path is not None:
            with suppress(OSError):
                os.close(self._at)

    def _write(self, text: bytes) -> None:
        lines = text.count(b"\n")
        # Behind half a line, which a full disk left, a whole one begins anew.
        if self._torn:
            text = b"\n" + text
        try:
            self._follow()
            while text:
                written = os.write(self._at, text)
                # The system may write less than it was given, and then the last line is not whole.
                self._torn = text[written - 1 : written] != b"\n"
                lines -= text[:written].count(b"\n")
                text = text[written:]
        except OSError as error:
            self._lose(error.strerror or str(error), max(1, lines))

    def _follow(self) -> None:
        """Open the file anew where another one has its name now, or none."""
        if self._path is None:
            return
        # Programs that rotate logs give the file another name.
        mine = os.fstat(self._at)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            # The old one is closed last: where the new one cannot be opened, it is still a valid descriptor.
            made = _opened(self._path)
            os.close(self._at)
            self._at = made
            self._torn = False

    def _lose(self, why: str, lines: int = 1) -> None:
        self.lost += lines
        # Once: a full disk is no reason to fill another one with warnings.
        if not self._warned:
            self._warned = True
            log.warning("the request log loses lines: %s", why)


def _opened(path: str) -> int:
    # Nobody but its owner may read it: who asked what is nobody else's business.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
