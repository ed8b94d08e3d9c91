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
from polydec.serve.endpoints import EndpointAnswer
from polydec.serve.errors import RefusalError
from polydec.serve.json_text import json_pieces, json_text
from polydec.serve.reply import AnswerDelta
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
    """The answer, whole or as a stream. writers: threads that write it; make: gives what it is written with."""
    leaving: asyncio.Task[None] | None = None
    try:
        reply = make()
        leaving = asyncio.create_task(_left(request, answers))
        if wanted.stream:
            return EventStream(writers, reply, answers, leaving, headers)
        listed = 0
        most = answers.limits.entries
        async for news in answers.news():
            if wanted.details:
                listed += count_delta_entries(news)
            if listed > most:
                raise RefusalError(
                    f"polydec is given, and the answers have more than {most} tokens, drafts and passes to list, which is "
                    "what this server lists: ask for a stream or fewer answers",
                    param="polydec",
                )
            reply.take(news)
        response = await json_response(writers, lambda: reply.whole(answers.completions), headers)
        leaving.cancel()
        return response
    except BaseException:
        if leaving is not None:
            leaving.cancel()
        answers.cancel(LEFT)
        raise


async def json_response(
    writers: Executor, make: Callable[[], Any], headers: Mapping[str, str]
) -> Response:
    """A response with the JSON text of what `make` gives. Both are made by one of the writers."""

    def write() -> list[bytes]:
        return [piece.encode() for piece in json_pieces(make())]

    pieces = await asyncio.get_running_loop().run_in_executor(writers, write)
    size = sum(map(len, pieces))
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
    """Server-sent events. However it ends, and even if it never begins, its request ends with it."""

    def __init__(
        self,
        writers: Executor,
        reply: EndpointAnswer,
        answers: ResponseAnswers,
        leaving: asyncio.Task[None],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(
            _events(writers, reply, answers),
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
            self._answers.cancel(LEFT)


async def _events(
    writers: Executor, reply: EndpointAnswer, answers: ResponseAnswers
) -> AsyncIterator[str]:
    """What fails under way is told as an event with an error."""
    try:
        for chunk in reply.opening():
            yield server_sent_event(chunk)
        async for news in answers.news():
            if count_delta_entries(news) <= SMALL:
                for chunk in reply.chunks(news):
                    yield server_sent_event(chunk)
            else:
                async for piece in _made_elsewhere(writers, reply.chunks(news)):
                    yield piece
        async for piece in _made_elsewhere(writers, reply.closing(answers.completions)):
            yield piece
        if reply.last:
            yield reply.last
    except RefusalError as refusal:
        yield server_sent_event(reply.failed(refusal))
    except Exception:
        log.exception("a stream failed")
        internal = RefusalError("the request failed inside the server", status=500, code="internal")
        yield server_sent_event(reply.failed(internal))


async def _made_elsewhere(
    writers: Executor, chunks: Iterable[Mapping[str, Any]]
) -> AsyncIterator[str]:
    """Events that one of the writers makes, piece by piece."""
    loop = asyncio.get_running_loop()
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
    """A small event of a stream."""
    return f"{_head(chunk)}{json_text(chunk)}\n\n"


def _head(chunk: Mapping[str, Any]) -> str:
    if "type" in chunk:
        return f"event: {chunk['type']}\ndata: "
    return "data: "


def count_delta_entries(news: AnswerDelta) -> int:
    """How much there is to write of some news."""
    drafts = sum(1 + len(step.token) for step in news.steps)
    return len(news.pieces) + _listed(news.notes) + _listed(news.prompt) + drafts + len(news.passes)


def _listed(notes: Sequence[Any]) -> int:
    """Log-probabilities of some tokens. The first one of a prompt has none."""
    if notes:
        return len(notes) * (1 + len(notes[-1].top))
    return 0


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. A client that leaves ends it."""
    going = asyncio.ensure_future(work)

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        going.cancel()

    leaving = asyncio.create_task(leave())
    try:
        return await going
    except asyncio.CancelledError:
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
    answers.cancel(LEFT)
