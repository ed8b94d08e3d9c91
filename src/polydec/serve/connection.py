"""A connection: how much of it is read at a time, how long it may take to say what it wants, and what it is told if it cannot.

uvicorn waits for a head without an end, reads 256 KiB at a time (ten thousands of events where a body comes in chunks of one
byte, each a tenth of a millisecond in which nobody else has a turn), and answers what is no HTTP in a form of its own.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from polydec.serve.errors import RefusalError
from polydec.serve.request_log import REQUEST_ID, choose_request_id

PART = 16 << 10
"""Bytes of a body that are read at a time; then others have their turn. A head that is longer than this is refused."""
SMALL = 1 << 10
"""Bytes that are read at a time where a body of many small chunks may be among them: of these each is an event."""
PATIENCE = 10.0
"""Seconds from the first byte of a head to its last one, from the beginning of a connection to the first head, and for what
comes of a body that is answered already."""


class BoundedConnection(H11Protocol, asyncio.BufferedProtocol):
    """uvicorn's, within bounds."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._part = bytearray(PART)
        self._small = memoryview(self._part)[:SMALL]
        self._due: asyncio.TimerHandle | None = None

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        """Say where the next part of the connection goes.

        Args:
            sizehint: Not used.

        Returns:
            The buffer, large only where a body of known size comes in.
        """
        # A chunked body may come in chunks of one byte, each of which is an event of the parser.
        sized = all(name != b"transfer-encoding" for name, _ in self.headers or ())
        body = self.conn.their_state is h11.SEND_BODY
        if body and sized:
            return self._part
        return self._small

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on a part that has come.

        Args:
            nbytes: Its size.
        """
        self.data_received(bytes(self._part[:nbytes]))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # pyright: ignore[reportArgumentType]   (as there)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._forget()  # between two requests uvicorn's own clock runs
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            RefusalError(f"the request is not HTTP/1.1, or its head has more than {PART} bytes"),
        )

    def _look(self) -> None:
        """Let the clock run while a head is awaited, or what nobody reads comes in."""
        here = self.conn.our_state
        there = self.conn.their_state
        # Waiting for a head, or for the rest of a body whose request is answered already.
        if there is h11.IDLE or (there is h11.SEND_BODY and here is h11.DONE):
            if self._due is None and not self.transport.is_closing():
                self._due = self.loop.call_later(PATIENCE, self._late)
        else:
            self._forget()

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _late(self) -> None:
        self._due = None
        self._refuse(
            RefusalError(
                f"the head of the request did not come within {PATIENCE:g} seconds",
                status=408,
                code="timeout",
            )
        )

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer, where nothing has been answered yet, and end the connection."""
        self._forget()
        # Once a response has begun there is no room for another one on this connection.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True  # whoever works on it writes no second answer
                self.cycle.message_event.set()
            # Nothing of its head can be trusted: the id is a new one.
            refusal.request_id = choose_request_id("")
            body = json.dumps(refusal.to_json()).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
                (REQUEST_ID, refusal.request_id),
            ]
            for event in (
                h11.Response(status_code=refusal.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
