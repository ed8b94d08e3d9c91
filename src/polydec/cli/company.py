"""The requests of one run in one trace: each line says whose event it is, and passes that several shared stand under each."""

from __future__ import annotations

import json
from typing import Any, TextIO

from polydec import api
from polydec.cli.generate import header, passed
from polydec.core.scheduler import Pass
from polydec.core.trace import Event, Opened, to_json


class Company:
    """Writes what happens to the requests of an engine. Requests are numbered from 0 in the order in which they are asked;
    seconds count from the first pass of all."""

    def __init__(self, lm: api.LM, into: TextIO) -> None:
        self._lm, self._into = lm, into
        self._passes = list[list[Pass]]()

    def submit(self, engine: api.Engine, ask: api.Ask, line: int) -> api.Ticket:
        """Ask the engine. line: of the input, which the opening names."""
        number, passes, opening = len(self._passes), list[Pass](), dict[str, Any]()

        def on(event: Event) -> None:
            self._write(event, number, opening if isinstance(event, Opened) else {})

        ticket = engine.submit(ask, on=on, passes=passes)
        opening["method"] = ticket.method
        opening["trace"] = {**header(self._lm, ticket), "line": line}
        self._passes.append(passes)
        return ticket

    def close(self) -> None:
        """Write the passes."""
        begun = min((p.start for passes in self._passes for p in passes), default=0.0)
        for number, passes in enumerate(self._passes):
            for event in passed(self._lm, passes, begun):
                self._write(event, number, {})

    def _write(self, event: Event, number: int, more: dict[str, Any]) -> None:
        self._into.write(json.dumps({**to_json(event), "request": number, **more}) + "\n")
