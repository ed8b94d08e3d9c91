"""A file of requests, answered into another one, a row for each line. It can be stopped at any moment and goes on from there.

Each row of the output says which line it answers and has a digest of it. What was written is the only record of what is done:
a row is written at once and whole, a last one that a kill cut in half is cut off, and a line that has a row is not answered
again. Rows come in the order in which answers end.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from polydec.api import Ask, Completion, Engine, LoadedModel, Ticket
from polydec.base import files
from polydec.base.edge import parse_object, read_bytes
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.request.batching import BatchingMode
from polydec.request.stages import EncodedRequest
from polydec.serve.body import RequestBody, read_object
from polydec.serve.endpoints import ENDPOINTS
from polydec.serve.errors import RefusalError, refusal_from_error
from polydec.serve.json_text import json_line
from polydec.serve.limits import apply_request_limits
from polydec.serve.settings import RequestLimits

log = logging.getLogger("polydec.batch")

LIMITS = RequestLimits(output=1 << 17, entries=1 << 22)
"""Of a line: nobody else waits for it."""

BEGIN = b'{"line": '
"""How every row begins."""
ENVELOPE = frozenset(("url", "body", "custom_id"))
"""Members that a line in OpenAI's form has, and no prompt."""


@dataclass(frozen=True)
class BatchLine:
    """A line of the input.

    Attributes:
        at: Its number, from 1.
        text: The line.
        digest: Hash of its text and of what else decides its answer.
    """

    at: int
    text: str
    digest: str

    @property
    def head(self) -> dict[str, Any]:
        """What its row begins with."""
        return {"line": self.at, "digest": self.digest}

    @cached_property
    def envelope_fields(self) -> Mapping[str, Any]:
        """What stands around the body of a request; of any other object the names of its members.

        A line is asked for it several times and parsed once. What is large is left out, as all
        lines of a file are held: a body that is an object is empty here.
        """
        try:
            members = parse_object(self.text, "a line")
        except PolydecError:
            return {}
        if ENVELOPE.isdisjoint(members):
            return dict.fromkeys(members)
        if isinstance(members.get("body"), Mapping):
            members["body"] = {}
        return members

    @property
    def is_request(self) -> bool:
        """Whether it is in OpenAI's form: an object with an url, a body or a custom_id."""
        return not ENVELOPE.isdisjoint(self.envelope_fields)

    @property
    def custom_id(self) -> str | None:
        """The client's name of it; None where it has none that is a text."""
        name = self.envelope_fields.get("custom_id")
        if isinstance(name, str):
            return name
        return None


@dataclass
class BatchProgress:
    """How far a batch is.

    Attributes:
        rows: Lines of the input that hold something.
        before: Rows that an earlier run wrote.
        done: Rows that this run wrote.
        wrong: Rows of these that hold an error.
        tokens: Tokens that this run wrote.
        began: When this run began, by `time.perf_counter`.
    """

    rows: int = 0
    before: int = 0
    done: int = 0
    wrong: int = 0
    tokens: int = 0
    began: float = field(default_factory=time.perf_counter)

    def progress_sentence(self) -> str:
        """One line for people."""
        seconds = max(time.perf_counter() - self.began, 1e-9)
        if self.before:
            kept = f" ({self.before} were there)"
        else:
            kept = ""
        return (
            f"{self.before + self.done} of {self.rows} rows{kept}, {self.wrong} with an error, {self.tokens} tokens, "
            f"{self.tokens / seconds:.1f} tokens/s"
        )


Row = dict[str, Any]
Submit = Callable[[Engine, EncodedRequest, int], Ticket]
"""Asks an engine; the number is that of the line."""


def submit_without_trace(engine: Engine, request: EncodedRequest, line: int) -> Ticket:
    """Submit a request that nobody watches.

    Args:
        engine: The engine that answers.
        request: The request, its prompt encoded.
        line: Number of its line in the file; not needed.

    Returns:
        The ticket of the request.
    """
    return engine.submit_encoded(request)


@dataclass(frozen=True)
class PendingBatchLine:
    """A line under way.

    Attributes:
        tickets: Its requests.
        row: Makes the row of their answers.
        failed: Makes the row of what went wrong.
    """

    tickets: tuple[Ticket, ...]
    row: Callable[[list[Completion]], Row]
    failed: Callable[[Exception], Row]


def lines_of(text: str, settings: str) -> list[BatchLine]:
    """Split an input into its lines.

    Args:
        text: The input.
        settings: Whatever else decides an answer, such as the model's name; it goes into each
            digest.

    Returns:
        The lines that hold something.
    """
    return [
        BatchLine(
            at,
            line,
            # The digest holds the line's number too: the same text twice is two requests.
            hashlib.sha256(
                f"{settings}\n{at}\n{line}".encode("utf-8", "surrogatepass")
            ).hexdigest()[:16],
        )
        for at, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]


def custom_id_lines(lines: Iterable[BatchLine]) -> dict[str, int]:
    """Find the first line of each custom_id.

    Args:
        lines: Lines of an input.

    Returns:
        The number of the first line, by custom_id.
    """
    out = dict[str, int]()
    for line in lines:
        if line.custom_id is not None:
            out.setdefault(line.custom_id, line.at)
    return out


class BatchRunner:
    """Turns lines into requests of one engine, and answers into rows.

    Args:
        model: The model.
        served: Name by which bodies may call the model.
        method: Decoding method of bodies that name none.
        seed: Seed of bodies that name none.
        own: Reads a line in our own form into an Ask; raises RequestError for a bad one.
        running: Answers that are written at the same time. Default 64.
        names: The first line of each custom_id, as far as it is known. None: nothing is.
        batching: How answers share passes (request/batching.py). None: as the engine has it.
        submit: How the engine is asked; whoever watches requests has a function of its own.
    """

    def __init__(
        self,
        model: LoadedModel,
        served: str,
        *,
        method: str,
        seed: int,
        own: Callable[[BatchLine], Ask],
        running: int = 64,
        names: Mapping[str, int] | None = None,
        batching: BatchingMode | None = None,
        submit: Submit = submit_without_trace,
    ) -> None:
        self._submitted = submit
        self.model = model
        self.served = served
        self.method = method
        self.seed = seed
        self.own = own
        self.engine = Engine(model, max_running=running, batching=batching)
        self.running = running
        self._named = dict(names or {})  # lines by their custom_id

    def answer_lines(
        self,
        lines: Iterable[BatchLine],
        done: Iterable[int],
        write: Callable[[Row], None],
        tally: BatchProgress,
    ) -> None:
        """Write a row for each line that has none yet.

        A few lines more than can run are prepared at a time.

        Args:
            lines: Lines of the input.
            done: Numbers of lines that have a row.
            write: Writes a row.
            tally: Counts the rows.
        """
        known = frozenset(done)
        working = list[PendingBatchLine]()
        try:
            for line in lines:
                # The custom_id is noted even of a line that is done: a later one may not have it
                # again.
                twice = self._twice(line)
                if line.at in known:
                    continue
                # Twice as many as can run: the next ones are prepared while these are written.
                while sum(len(w.tickets) for w in working) >= 2 * self.running:
                    working = list(self._tick(working, write, tally))
                if line.is_request:
                    form = self._request
                else:
                    form = self._prompt
                try:
                    working.append(form(line, twice))
                except _BadLineError as bad:
                    self._write(bad.row, write, tally, wrong=True)
            while working:
                working = list(self._tick(working, write, tally))
        finally:
            # However the batch ends, nothing stays in the engine.
            for work in working:
                self._cancel(work.tickets)

    def _tick(
        self, working: list[PendingBatchLine], write: Callable[[Row], None], tally: BatchProgress
    ) -> Iterator[PendingBatchLine]:
        """One tick; the rows of what has ended are written, and what has not is given back."""
        self.engine.step()
        for work in working:
            if not all(ticket.done for ticket in work.tickets):
                yield work
                continue
            try:
                answers = [ticket.completion() for ticket in work.tickets]
                row = work.row(answers)
                wrong = False
                tally.tokens += sum(a.usage["completion_tokens"] for a in answers)
            except Exception as error:  # a request's own: the others go on
                row = work.failed(error)
                wrong = True
            self._write(row, write, tally, wrong=wrong)

    @staticmethod
    def _write(
        row: Row, write: Callable[[Row], None], tally: BatchProgress, *, wrong: bool
    ) -> None:
        write(row)
        tally.done += 1
        tally.wrong += wrong

    def _submit(self, requests: Iterable[EncodedRequest], line: int) -> tuple[Ticket, ...]:
        """All of them, or none where one is refused."""
        tickets = list[Ticket]()
        try:
            for request in requests:
                tickets.append(self._submitted(self.engine, request, line))
        except BaseException:
            # Half of a line's prompts would run for nothing.
            self._cancel(tickets)
            raise
        return tuple(tickets)

    def _cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self.engine.cancel(ticket)

    # ---- our form ----

    def _prompt(self, line: BatchLine, twice: int | None) -> PendingBatchLine:
        def failed_row(error: Exception) -> Row:
            return {**line.head, "error": str(_told(error, ()))}

        try:
            tickets = self._submit([self.engine.encode_request(self.own(line))], line.at)
        except Exception as error:
            raise _BadLineError(failed_row(error)) from None
        return PendingBatchLine(
            tickets, lambda answers: {**line.head, **answers[0].to_json()}, failed_row
        )

    # ---- OpenAI's form ----

    def _twice(self, line: BatchLine) -> int | None:
        """The earlier line that has this one's custom_id."""
        if line.custom_id is None:
            return None
        first = self._named.setdefault(line.custom_id, line.at)
        if first == line.at:
            return None
        return first

    def _request(self, line: BatchLine, twice: int | None) -> PendingBatchLine:
        head = {
            **line.head,
            "id": f"batch_req_{line.digest}",
            "custom_id": line.custom_id,
        }

        def answered_row(status: int, body: Row) -> Row:
            """Make the row of a line in OpenAI's form.

            Args:
                status: HTTP status of its response.
                body: Body of its response.

            Returns:
                The row.
            """
            return {
                **head,
                "response": {"status_code": status, "request_id": line.digest, "body": body},
                "error": None,
            }

        sent = frozenset[str]()

        def failed_row(error: Exception) -> Row:
            refusal = _told(error, sent)
            return answered_row(refusal.status, refusal.to_json())

        # A line without a right envelope has no response at all: its error stands beside it.
        why = _wrong(line.envelope_fields, twice)
        if why is not None:
            raise _BadLineError(
                {
                    **head,
                    "response": None,
                    "error": {"code": "invalid_line", "message": str(RefusalError(why))},
                }
            )
        endpoint = ENDPOINTS[line.envelope_fields["url"]]
        shape = endpoint.reads()
        try:
            body = RequestBody(read_object(line.text, "the line", holds="body")["body"])
            sent = body.fields
            # From here on an error is the response's: it has a status and a body as over HTTP.
            self._check_model(body)
            wanted = shape.read_request(body, self.model, self.method, self.seed)
            if wanted.stream:
                raise RefusalError("stream is true: a row has the whole answer", param="stream")
            requests = apply_request_limits(self.engine.model, wanted.asks, LIMITS)
            tickets = self._submit(requests, line.at)
        except Exception as error:
            raise _BadLineError(failed_row(error)) from None
        reply = endpoint.answer_writer(
            shape,
            replace(wanted, details=False),
            self.model,
            self.served,
            line.digest,
            int(time.time()),
        )
        return PendingBatchLine(
            tickets, lambda answers: answered_row(200, reply.complete_response(answers)), failed_row
        )

    def _check_model(self, body: RequestBody) -> None:
        name = body.take_field("model", self.served)
        if name != self.served:
            raise RefusalError(
                f"model {short_repr(name)} is not what this batch runs: it must be {self.served}, or be left out",
                status=404,
                param="model",
                code="model_not_found",
            )


def _told(error: Exception, sent: Collection[str]) -> RefusalError:
    """What a row says of an error.

    `sent` are the fields of the request. What nobody expected is one line's error as well.
    """
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, PolydecError):
        return refusal_from_error(error, sent)
    log.error("a line failed", exc_info=error)
    return RefusalError("the request failed inside the engine", status=500, code="internal")


class _BadLineError(Exception):
    """A line that is answered with a row at once."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row


def _wrong(fields: Mapping[str, Any], twice: int | None) -> str | None:
    """What is wrong with a line of OpenAI's form, apart from its body."""
    if not isinstance(fields.get("custom_id"), str) or not fields["custom_id"]:
        return f"custom_id is {short_repr(fields.get('custom_id'))}: it must be a text of at least one character"
    if twice is not None:
        return f"custom_id is {short_repr(fields['custom_id'])}: line {twice} has it already"
    if fields.get("method") != "POST":
        return f"method is {short_repr(fields.get('method'))}: it must be POST"
    if not isinstance(fields.get("url"), str) or fields["url"] not in ENDPOINTS:
        return f"url is {short_repr(fields.get('url'))}: it must be {' or '.join(ENDPOINTS)}"
    if not isinstance(fields.get("body"), Mapping):
        return f"body is {short_repr(fields.get('body'))}: it must be an object"
    more = next((k for k in fields if k not in ("custom_id", "method", "url", "body")), None)
    if more is None:
        return None
    return f"field {short_repr(more)} is unknown: a line has custom_id, method, url and body"


def resume_batch_output(path: Path, lines: Iterable[BatchLine]) -> list[int]:
    """Find the lines that an output file answers already.

    Half a row at its end, which a kill left, is cut off.

    Args:
        path: The output file.
        lines: Lines of the input.

    Returns:
        Numbers of the lines that have a row, ascending.

    Raises:
        RequestError: The file holds anything else, or answers to another input; then it is left as
            it is.
    """
    if not path.exists():
        return []
    # What follows the last line break is a row that was cut, or nothing.
    *rows, tail = read_bytes(path, 1 << 40).split(b"\n")
    digests = {line.at: line.digest for line in lines}
    done = set[int]()
    for number, text in enumerate(rows, 1):
        if not text.startswith(BEGIN):
            raise RequestError(
                f"line {number} of {str(path)!r} is no row of a batch: give another file to write to"
            )
        row = parse_object(text, f"line {number} of {str(path)!r}")
        at = row["line"]
        # A row for another text, or under other settings, is no answer to this input.
        if type(at) is not int or digests.get(at) != row.get("digest"):
            raise RequestError(
                f"line {number} of {str(path)!r} answers another line {short_repr(at)} than this input has, or with "
                "other flags: give another file to write to"
            )
        if at in done:
            raise RequestError(
                f"line {number} of {str(path)!r} answers line {at} once more: give another file to write to"
            )
        done.add(at)
    if tail and tail[: len(BEGIN)] != BEGIN[: len(tail)]:
        raise RequestError(
            f"the end of {str(path)!r} is no row of a batch: give another file to write to"
        )
    # Everything was checked: only now is the file written to.
    files.end_last_line(path, lambda text: False)
    return sorted(done)


def batch_row_writer(file: BinaryIO) -> Callable[[Row], None]:
    """Make what writes each row at once, in one piece.

    Args:
        file: The output file, open without a buffer.

    Returns:
        A function that writes a row.
    """

    def write_row(row: Row) -> None:
        text = memoryview(json_line(row).encode() + b"\n")
        # A write may take less than all of it, to a pipe or a disk that is nearly full.
        while text:
            text = text[file.write(text) :]

    return write_row
