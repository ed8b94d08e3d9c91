"""What is written down of requests: what a reader must know of each, and the requests of one run in
one trace, where each line says whose event it is and passes that several shared stand under each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from polydec.core.scheduler import RequestPass
from polydec.core.trace import VERSION, OpenedEvent, PassedEvent, TraceEvent, to_json
from polydec.request.engine import Engine, Ticket
from polydec.request.loaded import LoadedModel
from polydec.request.stages import EncodedRequest

LETTERS = 2000
"""Of a prompt's text, for whoever looks at a trace; its ids are all there."""


class TextSink(Protocol):
    """Takes text."""

    def write_text(self, text: str, /) -> object: ...


class TraceWriter:
    """Writes what happens to the requests of an engine. Requests are numbered from 0 in the order
    in which they are asked; seconds count from the first pass of all."""

    def __init__(self, lm: LoadedModel, into: TextSink) -> None:
        self._lm = lm
        self._into = into
        self._passes = list[list[RequestPass]]()

    def submit_traced(self, engine: Engine, request: EncodedRequest, line: int) -> Ticket:
        """Ask the engine for a request whose events are written.

        Args:
            engine: Runs it.
            request: The request, encoded for this engine's model.
            line: Of the input, which the opening names.

        Returns:
            The ticket of the request.

        Raises:
            RequestError: Something cannot be honoured.
        """
        number = len(self._passes)
        passes = list[RequestPass]()
        opening = dict[str, Any]()

        def on_event(event: TraceEvent) -> None:
            self._write(event, number, opening if isinstance(event, OpenedEvent) else {})

        ticket = engine.submit_encoded(request, on=on_event, passes=passes)
        opening["method"] = ticket.method
        opening["trace"] = {**trace_header(self._lm, ticket), "line": line}
        self._passes.append(passes)
        return ticket

    def close(self) -> None:
        """Write the passes."""
        begun = min((p.start for passes in self._passes for p in passes), default=0.0)
        for number, passes in enumerate(self._passes):
            for event in pass_events(self._lm, passes, begun):
                self._write(event, number, {})

    def _write(self, event: TraceEvent, number: int, more: dict[str, Any]) -> None:
        self._into.write_text(json.dumps({**to_json(event), "request": number, **more}) + "\n")


def trace_header(lm: LoadedModel, ticket: Ticket) -> dict[str, Any]:
    """What reads a trace must know of the model and the request; it stands beside each opening.

    Args:
        lm: The model that answers.
        ticket: Of the request.

    Returns:
        Values as JSON has them.
    """
    vocab = lm.checkpoint.lm.vocab
    request = ticket.plan.request
    words = vocab.words
    return {
        "version": VERSION,
        "text": None if words is None else words.decode(request.prompt)[:LETTERS],
        "model": lm.name,
        "draft": None if lm.draft is None else lm.draft.name,
        "kernel": lm.checkpoint.kernel,
        "trained": [artefact.kind for artefact in lm.artefacts],
        "vocabulary": vocab.size,
        "ends": sorted((frozenset[int]() if request.ignore_eos else vocab.eos) | request.stop_ids),
        "max_tokens": request.max_tokens,
        # What the method was told of passes, where anything was.
        "costs": asdict(lm.costs) if "costs" in vars(lm) else None,
    }


def pass_events(
    lm: LoadedModel, passes: Sequence[RequestPass], begun: float | None = None
) -> Iterator[PassedEvent]:
    """The passes of a request as events. They are of all its answers together, and stand under the
    first.

    Args:
        lm: The model that answered.
        passes: Those in which the request took part.
        begun: The moment from which seconds count. None: the first of these passes.

    Yields:
        An event for each pass.
    """
    names = lm.names
    if begun is None:
        begun = min((p.start for p in passes), default=0.0)
    for p in passes:
        yield PassedEvent(
            0, names.get(p.model, "?"), p.start - begun, p.seconds, p.positions, p.of, p.queries
        )
