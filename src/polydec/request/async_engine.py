"""Requests of asyncio tasks: one thread owns an engine, and the tasks of any event loop share its
passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any, Unpack

import torch

from polydec.request.engine import Completion, Engine, Piece, Ticket
from polydec.request.fields import (
    Ask,
    Prompt,
    RequestFields,
    ask_from_fields,
    refuse_streamed,
)
from polydec.request.loaded import LoadedModel, check_loaded_model

_SHARED = Lock()
"""Held while a model's own engine is made, so that two threads get one."""


@dataclass
class AwaitedNews:
    """What one tick gave one request.

    Attributes:
        pieces: What became certain.
        completion: Its answer, once it has ended well.
        error: What ended it otherwise.
    """

    pieces: list[Piece] = field(default_factory=list[Piece])
    completion: Completion | None = None
    error: BaseException | None = None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.completion is not None or self.error is not None


class AwaitedRequest:
    """A request that a task waits for; it is made in the thread of the task's event loop.

    Args:
        ask: The request.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Queue[AwaitedNews]()
        # The engine's thread alone reads and writes these.
        self.ticket: Ticket | None = None
        # Known in the loop's thread: a request that has ended needs no order to end it.
        self.ended = False

    async def next_news(self) -> AwaitedNews:
        """Wait for what the next tick gives."""
        news = await self.news.get()
        self.ended = news.is_last
        return news

    def send_news(self, news: AwaitedNews) -> bool:
        """Hand something to the task that waits, from the engine's thread.

        Args:
            news: What is told.

        Returns:
            Whether its event loop still runs.
        """
        try:
            self.loop.call_soon_threadsafe(self.news.put_nowait, news)
        except RuntimeError:
            # The loop was closed: nobody waits any more.
            return False
        return True


class AsyncEngine:
    """An engine for programs with an event loop: each request is awaited, and all that are under way
    share passes.

    A thread runs the passes while there are requests, so the event loop goes on meanwhile; without
    requests there is none, and nothing needs to be closed. A task that is cancelled, an iterator
    that is closed and a loop that is closed end their requests, whose caches are given back with
    the next tick. Tasks of several event loops may share one. No text depends on what else runs.

    Args:
        model: What `load` gave.
        limits: Those of `Engine`, by name.
    """

    def __init__(self, model: LoadedModel, **limits: Any) -> None:
        self.engine = Engine(model, **limits)
        self._threads = torch.get_num_threads()
        # Between the tasks and the engine's thread.
        self._lock = Lock()
        self._orders = list[Callable[[], None]]()
        self._thread: Thread | None = None
        # The thread's own.
        self._going = list[AwaitedRequest]()

    async def generate(self, prompt: Prompt | Ask, **fields: Unpack[RequestFields]) -> Completion:
        """Decode one request to its end. Cancelling the task cancels the request.

        Args:
            prompt: Text, token ids or chat messages, or a whole Ask.
            fields: Those of Ask and of sampling, by name.

        Returns:
            All its answers with what they cost.

        Raises:
            RequestError: Something cannot be honoured, in one sentence.
            TypeError: A field is unknown, stands beside an Ask, or twice.
        """
        request = self._begin(prompt, fields)
        try:
            while not (news := await request.next_news()).is_last:
                pass
            return _completion_of(news)
        finally:
            self._end(request)

    async def stream(
        self, prompt: Prompt | Ask, **fields: Unpack[RequestFields]
    ) -> AsyncIterator[Piece]:
        """The pieces of one request as they become certain. Cancelling the task, or closing the
        iterator, cancels the request.

        Args:
            prompt: Text, token ids or chat messages, or a whole Ask.
            fields: Those of Ask and of sampling, by name.

        Yields:
            A piece for each token.

        Raises:
            RequestError: Something cannot be honoured, in one sentence.
            TypeError: A field is unknown, stands beside an Ask, or twice.
        """
        ask = ask_from_fields(prompt, fields)
        refuse_streamed(ask)
        request = self._begin(ask, {})
        try:
            while True:
                news = await request.next_news()
                for piece in news.pieces:
                    yield piece
                if news.is_last:
                    break
            _completion_of(news)
        finally:
            self._end(request)

    def _begin(self, prompt: Prompt | Ask, fields: Mapping[str, Any]) -> AwaitedRequest:
        request = AwaitedRequest(ask_from_fields(prompt, fields))
        self._give_order(lambda: self._submit(request))
        return request

    def _end(self, request: AwaitedRequest) -> None:
        if not request.ended:
            self._give_order(lambda: self._leave(request))

    def _give_order(self, order: Callable[[], None]) -> None:
        with self._lock:
            self._orders.append(order)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="polydec-engine", daemon=True)
                self._thread.start()

    # ---- the engine's thread ----

    def _run(self) -> None:
        # A new thread starts with torch's own number, whatever the program has set.
        torch.set_num_threads(self._threads)
        while True:
            with self._lock:
                orders = self._orders
                self._orders = []
                # The next order starts another thread: one that waits would keep the model alive.
                if not orders and not self._going:
                    self._thread = None
                    return
            for order in orders:
                order()
            try:
                self.engine.step()
            except Exception as error:
                # No request's own error, which its ticket would hold: all of them end with it.
                self._fail_all(error)
            self._tell_all()

    def _submit(self, request: AwaitedRequest) -> None:
        try:
            request.ticket = self.engine.submit(request.ask)
        except Exception as error:
            request.send_news(AwaitedNews(error=error))
        else:
            self._going.append(request)

    def _leave(self, request: AwaitedRequest) -> None:
        """Nobody waits any more; a request that has ended stays so."""
        if request in self._going:
            self._going.remove(request)
            assert request.ticket is not None, "a request that is going has a ticket"
            self.engine.cancel(request.ticket)

    def _fail_all(self, error: Exception) -> None:
        for request in list(self._going):
            self._leave(request)
            request.send_news(AwaitedNews(error=error))

    def _tell_all(self) -> None:
        for request in list(self._going):
            ticket = request.ticket
            assert ticket is not None, "a request that is going has a ticket"
            news = AwaitedNews(ticket.watch.final_pieces())
            if ticket.done:
                self._going.remove(request)
                try:
                    news.completion = ticket.completion()
                except Exception as error:
                    news.error = error
            # Of most ticks a request sees nothing: a prompt is fed, or a draft is written.
            elif not news.pieces:
                # A loop that was closed takes no news, so it is asked for where there are none.
                if request.loop.is_closed():
                    self._leave(request)
                continue
            if not request.send_news(news):
                self._leave(request)


def _completion_of(news: AwaitedNews) -> Completion:
    """The answer of a request that has ended. Raises what ended it otherwise."""
    if news.error is not None:
        raise news.error
    assert news.completion is not None, "the last news is an answer or an error"
    return news.completion


def async_engine_of(model: LoadedModel) -> AsyncEngine:
    """The engine that all share who await this model by `agenerate` and `astream`."""
    check_loaded_model(model)
    with _SHARED:
        known = vars(model)
        if "_async_engine" not in known:
            known["_async_engine"] = AsyncEngine(model)
        return known["_async_engine"]


async def agenerate(
    model: LoadedModel, prompt: Prompt | Ask, **fields: Unpack[RequestFields]
) -> Completion:
    """Decode one request to its end, in passes that all share who await this model. Cancelling the
    task cancels the request.

    Args:
        model: What `load` gave.
        prompt: Text, token ids or chat messages, or a whole Ask.
        fields: Those of Ask and of sampling, by name.

    Returns:
        All its answers with what they cost.

    Raises:
        RequestError: Something cannot be honoured, in one sentence.
        TypeError: A field is unknown, stands beside an Ask, or twice.
    """
    return await async_engine_of(model).generate(prompt, **fields)


def astream(
    model: LoadedModel, prompt: Prompt | Ask, **fields: Unpack[RequestFields]
) -> AsyncIterator[Piece]:
    """The pieces of one request as they become certain, in passes that all share who await this
    model. Cancelling the task, or closing the iterator, cancels the request.

    Args:
        model: What `load` gave.
        prompt: Text, token ids or chat messages, or a whole Ask.
        fields: Those of Ask and of sampling, by name.

    Returns:
        A piece for each token; iterating raises as `agenerate` does.

    Raises:
        RequestError: The model is no loaded model.
    """
    return async_engine_of(model).stream(prompt, **fields)
