"""From what a model writes to what a client gets: whole or as a stream, written outside of the event loop where it is long.

Whatever fails once a request has begun, and a client that leaves, ends the request: nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from polydec.serve.body import ResponseOptions
from polydec.serve.endpoints import EndpointAnswer, StreamedAnswer
from polydec.serve.errors import RefusalError
from polydec.serve.json_text import json_pieces, json_text
from polydec.serve.reply import AnswerDelta
from polydec.serve.request_log import RequestRecord, record_of
from polydec.serve.worker import LEFT, ResponseAnswers

log = logging.getLogger("polydec.serve")

WRITERS = 2
"""Threads that write answers: what a long one takes while it is written, only so many take at a time."""
SMALL = 256
"""Entries of a chunk that is written in the event loop: it takes less than to hand it to a thread and back."""
WHOLE = 1 << 20
"""Bytes of a response that is sent at once; a longer one is sent as fast as its client takes it."""

T = TypeVar("T")


async def respond_to_request(
    request: Request,
    writers: Executor,
    make: Callable[[], EndpointAnswer],
    wanted: ResponseOptions,
    answers: ResponseAnswers,
    headers: Mapping[str, str],
) -> Response:
    """Make the response of an endpoint that decodes, complete or as a stream.

    Args:
        request: The request; when its client leaves, the answers are cancelled.
        writers: Threads that write long answers.
        make: Makes what the answer is written with.
        wanted: What the request asks for.
        answers: The answers under way.
        headers: Headers of the response.

    Returns:
        The response.

    Raises:
        RefusalError: An answer failed, or there is more to list than the server lists.
    """
    leaving: asyncio.Task[None] | None = None
    try:
        reply = make()
        # Nobody else listens to the connection while the answer is written.
        leaving = asyncio.create_task(_left(request, answers))
        # A picture is one piece: what is written on the way is not told to its answer.
        listens = reply if isinstance(reply, StreamedAnswer) else None
        if wanted.stream and listens is not None:
            # From here on the stream itself ends the request.
            record = record_of(request.scope)
            return EventStream(writers, listens, answers, leaving, headers, record)
        listed = 0
        most = answers.limits.entries
        async for news in answers.next_news():
            if wanted.details:
                listed += count_delta_entries(news)
            # The steps of all rounds stay in memory until the end, so they are bounded like
            # log-probabilities.
            if listed > most:
                raise RefusalError(
                    f"polydec is given, and the answers have more than {most} tokens, drafts and passes to list, which is "
                    "what this server lists: ask for a stream or fewer answers",
                    param="polydec",
                )
            if listens is not None:
                listens.take_news(news)
        response = await json_response(
            writers, lambda: reply.complete_response(answers.completions), headers
        )
        leaving.cancel()
        return response
    except BaseException:
        # Whatever went wrong, nobody waits for the answers any more.
        if leaving is not None:
            leaving.cancel()
        answers.cancel_prompts(LEFT)
        raise


async def json_response(
    writers: Executor, make: Callable[[], Any], headers: Mapping[str, str]
) -> Response:
    """Make a response with the JSON text of a value, both made by one of the writers.

    Args:
        writers: Threads that write.
        make: Makes the value.
        headers: Headers of the response.

    Returns:
        The response; a long one is sent piece by piece.
    """

    def write_json() -> list[bytes]:
        return [piece.encode() for piece in json_pieces(make())]

    pieces = await asyncio.get_running_loop().run_in_executor(writers, write_json)
    size = sum(map(len, pieces))
    # The length is known in either case, so that a client can tell a cut response.
    if size <= WHOLE:
        return Response(b"".join(pieces), headers=dict(headers), media_type="application/json")
    return StreamingResponse(
        _each(pieces),
        headers={**headers, "content-length": str(size)},
        media_type="application/json",
    )


async def _each(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class EventStream(StreamingResponse):
    """A response of server-sent events.

    However it ends, and even if it never begins, its request ends with it.

    Args:
        writers: Threads that write long events.
        reply: How the answer is written.
        answers: The answers under way.
        leaving: The task that waits for the client to leave; it is cancelled at the end.
        headers: Headers of the response.
        record: The request's record, which ends with the answers.
    """

    def __init__(
        self,
        writers: Executor,
        reply: StreamedAnswer,
        answers: ResponseAnswers,
        leaving: asyncio.Task[None],
        headers: Mapping[str, str],
        record: RequestRecord,
    ) -> None:
        super().__init__(
            _events(writers, reply, answers, record),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers},
        )
        self._answers = answers
        self._leaving = leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leaving.cancel()
            self._answers.cancel_prompts(LEFT)


async def _events(
    writers: Executor, reply: StreamedAnswer, answers: ResponseAnswers, record: RequestRecord
) -> AsyncIterator[str]:
    """The events of a stream. What fails on the way becomes an event with an error."""
    try:
        for chunk in reply.opening_events():
            yield server_sent_event(chunk)
        async for news in answers.next_news():
            # Small events are the rule: to hand each to a thread would cost more than it takes.
            if count_delta_entries(news) <= SMALL:
                for chunk in reply.stream_chunks(news):
                    yield server_sent_event(chunk)
            else:
                async for piece in _made_elsewhere(writers, reply.stream_chunks(news)):
                    yield piece
        # Clients stop reading at the last event, and may ask again at once: what this answer took
        # is counted by then.
        await record.finish_record()
        async for piece in _made_elsewhere(writers, reply.closing_events(answers.completions)):
            yield piece
        if reply.last:
            yield reply.last
    except RefusalError as refusal:
        refusal.request_id = record.request_id
        yield server_sent_event(reply.failure_events(refusal))
    except Exception:
        log.exception("the stream of request %s failed", record.request_id)
        internal = RefusalError("the request failed inside the server", status=500, code="internal")
        internal.request_id = record.request_id
        yield server_sent_event(reply.failure_events(internal))


async def _made_elsewhere(
    writers: Executor, chunks: Iterable[Mapping[str, Any]]
) -> AsyncIterator[str]:
    """Events that one of the writers makes, piece by piece."""
    loop = asyncio.get_running_loop()
    # The generator runs in the writers' threads, one piece at a time, so that the loop stays free.
    pieces = _pieces(chunks)
    while (piece := await loop.run_in_executor(writers, next, pieces, None)) is not None:
        yield piece


def _pieces(chunks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for chunk in chunks:
        head = _head(chunk)
        for piece in json_pieces(chunk, ascii_only=True):
            yield head + piece
            head = ""
        yield "\n\n"


def server_sent_event(chunk: Mapping[str, Any]) -> str:
    """Write a small event of a stream.

    Args:
        chunk: The event; its ``type``, if it has one, becomes the event's name.

    Returns:
        The event's text.
    """
    return f"{_head(chunk)}{json_text(chunk)}\n\n"


def _head(chunk: Mapping[str, Any]) -> str:
    if "type" in chunk:
        return f"event: {chunk['type']}\ndata: "
    return "data: "


def count_delta_entries(news: AnswerDelta) -> int:
    """Count how much there is to write of some news.

    Args:
        news: What one tick wrote to an answer.

    Returns:
        Pieces, log-probabilities, drafted tokens and passes, one each.
    """
    drafts = sum(1 + len(step.token) for step in news.steps)
    return len(news.pieces) + _listed(news.notes) + _listed(news.prompt) + drafts + len(news.passes)


def _listed(notes: Sequence[Any]) -> int:
    """Log-probabilities of some tokens. The first one of a prompt has none."""
    if notes:
        return len(notes) * (1 + len(notes[-1].top))
    return 0


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for some work, unless the client leaves first.

    Args:
        request: The request of that client.
        work: The work, which is cancelled when the client leaves.

    Returns:
        What the work returns.

    Raises:
        RefusalError: The client has left.
    """
    going = asyncio.ensure_future(work)

    async def leave_step() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        going.cancel()

    leaving = asyncio.create_task(leave_step())
    try:
        return await going
    except asyncio.CancelledError:
        # Cancelled by the client's leaving; any other cancellation goes on.
        if leaving.done():
            raise RefusalError("the client has left", status=499, code="left") from None
        raise
    finally:
        leaving.cancel()
        going.cancel()


async def _left(request: Request, answers: ResponseAnswers) -> None:
    """Cancel the request when its client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answers.cancel_prompts(LEFT)
