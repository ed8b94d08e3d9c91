"""The endpoints that answer: how a request of each is read, and how its answers are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from polydec.api import Completion, LoadedModel
from polydec.serve.body import RequestBody, ResponseOptions
from polydec.serve.errors import RefusalError
from polydec.serve.images import IMAGES, ImagesAnswer, ImagesReader
from polydec.serve.reply import AnswerDelta, CompletionsAnswer
from polydec.serve.responses import ResponsesAnswer, ResponsesReader
from polydec.serve.shapes import ChatCompletionsShape, CompletionsShape


class EndpointReader(Protocol):
    """How a request is read.

    Attributes:
        prefix: How the response's id begins.
    """

    prefix: str

    def read_request(
        self, body: RequestBody, model: LoadedModel, method: str, seed: int
    ) -> ResponseOptions:
        """Read a request.

        Args:
            body: Body of the request, from which the fields are taken.
            model: The model that is to answer.
            method: Decoding method where the request names none.
            seed: Seed where the request has none.

        Returns:
            What the request asks for.

        Raises:
            RefusalError: Something cannot be honoured.
            RequestError: A value is out of its range.
        """
        ...


class EndpointAnswer(Protocol):
    """An answer on its way out."""

    def complete_response(self, done: Sequence[Completion]) -> dict[str, Any]: ...


@runtime_checkable
class StreamedAnswer(EndpointAnswer, Protocol):
    """An answer that may go out as a stream: it is told what is written while that is written.

    Attributes:
        last: What is sent after the events of a stream; "" for nothing.
    """

    last: str

    def opening_events(self) -> Iterator[dict[str, Any]]: ...
    def stream_chunks(self, news: AnswerDelta) -> Iterator[dict[str, Any]]: ...
    def closing_events(self, done: Sequence[Completion]) -> Iterator[dict[str, Any]]: ...
    def failure_events(self, refusal: RefusalError) -> dict[str, Any]: ...
    def take_news(self, news: AnswerDelta) -> None: ...


@dataclass(frozen=True)
class ServerEndpoint:
    """An endpoint that decodes.

    Attributes:
        reads: Makes what reads a request.
        answers: Makes what writes its answer, from the reader, what is wanted, the model, its name
            here, and the response's id and time.
    """

    reads: Callable[[], Any]
    answers: Callable[[Any, ResponseOptions, LoadedModel, str, str, int], EndpointAnswer]

    def answer_writer(
        self,
        reads: EndpointReader,
        wanted: ResponseOptions,
        model: LoadedModel,
        served: str,
        name: str,
        created: int,
    ) -> EndpointAnswer:
        """Make what writes the answer to a request.

        Args:
            reads: What has read the request.
            wanted: What the request asks for.
            model: The model that answers.
            served: Name of the model in the response.
            name: Id of the response, without its prefix.
            created: When the request came, in seconds of the epoch.

        Returns:
            The answer.
        """
        return self.answers(reads, wanted, model, served, f"{reads.prefix}-{name}", created)


ENDPOINTS: Mapping[str, ServerEndpoint] = MappingProxyType(
    {
        "/v1/chat/completions": ServerEndpoint(ChatCompletionsShape, CompletionsAnswer),
        "/v1/completions": ServerEndpoint(CompletionsShape, CompletionsAnswer),
        "/v1/responses": ServerEndpoint(ResponsesReader, ResponsesAnswer),
        IMAGES: ServerEndpoint(ImagesReader, ImagesAnswer),
    }
)
