"""The endpoints that answer: how a request of each is read, and how its answers are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from polydec.api import LM, Completion
from polydec.serve.body import Body, Wanted
from polydec.serve.errors import Refusal
from polydec.serve.reply import News, Reply
from polydec.serve.responses import Response, Responses
from polydec.serve.shapes import Chat, Completions


class Reads(Protocol):
    """How a request is read. prefix: of the response's id."""

    prefix: str

    def read(self, body: Body, model: LM, method: str, seed: int) -> Wanted:
        """Raises Refusal or RequestError for what cannot be honoured."""
        ...


class Answer(Protocol):
    """An answer on its way out: as a stream, or as one response. last: what is sent behind the events of a stream."""

    last: str

    def opening(self) -> Iterator[dict[str, Any]]: ...
    def chunks(self, news: News) -> Iterator[dict[str, Any]]: ...
    def closing(self, done: Sequence[Completion]) -> Iterator[dict[str, Any]]: ...
    def failed(self, refusal: Refusal) -> dict[str, Any]: ...
    def take(self, news: News) -> None: ...
    def whole(self, done: Sequence[Completion]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Endpoint:
    """reads: made for each request; answers: given it, what is wanted, the model, its name here, and the response's id and
    time."""

    reads: Callable[[], Any]
    answers: Callable[[Any, Wanted, LM, str, str, int], Answer]

    def answer(
        self, reads: Reads, wanted: Wanted, model: LM, served: str, name: str, created: int
    ) -> Answer:
        """The answer to a request; name: its id without the prefix."""
        return self.answers(reads, wanted, model, served, f"{reads.prefix}-{name}", created)


ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        "/v1/chat/completions": Endpoint(Chat, Reply),
        "/v1/completions": Endpoint(Completions, Reply),
        "/v1/responses": Endpoint(Responses, Response),
    }
)
