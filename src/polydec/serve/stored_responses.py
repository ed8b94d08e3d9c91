"""Responses that are kept for later turns (`store` of /v1/responses): bounded in number and bytes, each its client's alone."""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from polydec.base.options import short_repr
from polydec.serve.errors import RefusalError
from polydec.serve.settings import ServerSettings

OVERHEAD = 1024
"""Bytes that a response counts beside its texts."""


@dataclass(frozen=True)
class StoredResponse:
    """One response that is kept.

    Attributes:
        packed_body: The response as it was sent, as JSON, compressed.
        packed_chat: The messages before it and its own, as JSON, compressed: what a next turn goes
            on from.
        until: When it expires.
    """

    packed_body: bytes
    packed_chat: bytes
    until: float

    def unpack_body(self) -> bytes:
        return zlib.decompress(self.packed_body)

    def unpack_chat(self) -> bytes:
        return zlib.decompress(self.packed_chat)

    @property
    def total_bytes(self) -> int:
        return len(self.packed_body) + len(self.packed_chat) + OVERHEAD


class ResponseStore:
    """The responses that are kept, of all clients. Its methods may be called from any thread.

    Where there is no room for one more, the client that holds most loses its oldest one: nobody is
    shut out by another one.

    Args:
        most: Responses that are kept; 0: none is.
        most_bytes: Bytes that they take, compressed.
        seconds: After which one expires.
        clock: Gives the time in seconds. Default `time.monotonic`.
    """

    def __init__(
        self,
        most: int = ServerSettings.stored_responses,
        most_bytes: int = int(ServerSettings.stored_size * (1 << 20)),
        seconds: float = ServerSettings.stored_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.seconds = seconds
        self._clock = clock
        # Responses are kept by the threads that write answers, and looked up by others.
        self._lock = Lock()
        # From the oldest to the newest, which is the order in which they expire.
        self._kept = OrderedDict[tuple[str, str], StoredResponse]()
        self._bytes = Counter[str]()
        self._count = Counter[str]()

    @property
    def bytes_taken(self) -> int:
        return self._bytes.total()

    def __len__(self) -> int:
        return len(self._kept)

    def keep_response(self, client: str, name: str, body: bytes, chat: bytes) -> bool:
        """Keep a response.

        Args:
            client: Whose it is.
            name: Its id.
            body: The response as JSON.
            chat: The messages up to its own as JSON.

        Returns:
            Whether it is kept: one that is larger than its client's share of a full store is not,
            nor one that before it was compressed is larger than the store.
        """
        # What shrinks to nothing must not grow without bound when it is read again.
        if len(body) + len(chat) > self.most_bytes:
            return False
        # Texts shrink to about a third, and most of what is kept is never asked for. The fastest
        # level takes 10 ms for a megabyte, in the thread that wrote the answer.
        made = StoredResponse(
            zlib.compress(body, 1), zlib.compress(chat, 1), self._clock() + self.seconds
        )
        with self._lock:
            self._drop_expired()
            # One that is larger than the whole store finds no room, whatever is dropped.
            if not self.most or made.total_bytes > self.most_bytes:
                return False
            # Taken in before others go: its own client may be the one that holds most now.
            self._kept[client, name] = made
            self._bytes[client] += made.total_bytes
            self._count[client] += 1
            while len(self._kept) > self.most:
                self._drop_oldest(self._count)
            while self._bytes.total() > self.most_bytes:
                self._drop_oldest(self._bytes)
            # It may be gone already, as the oldest of a client that has only this one.
            return (client, name) in self._kept

    def find_response(self, client: str, name: str) -> StoredResponse | None:
        """Look a response up.

        Args:
            client: Who asks.
            name: Its id.

        Returns:
            The response; None where this client has none of that id.
        """
        with self._lock:
            self._drop_expired()
            # An id alone is not enough: whoever learns one must not read what another client asked.
            return self._kept.get((client, name))

    def forget_response(self, client: str, name: str) -> bool:
        """Forget a response.

        Args:
            client: Who asks.
            name: Its id.

        Returns:
            Whether this client had one of that id.
        """
        with self._lock:
            self._drop_expired()
            return self._drop((client, name))

    def _drop(self, key: tuple[str, str]) -> bool:
        gone = self._kept.pop(key, None)
        if gone is None:
            return False
        client = key[0]
        self._bytes[client] -= gone.total_bytes
        self._count[client] -= 1
        # Clients come and go: counters of zero would pile up.
        if not self._count[client]:
            del self._bytes[client], self._count[client]
        return True

    def _drop_oldest(self, held: Mapping[str, int]) -> None:
        """Of the client that holds most."""
        client = max(held, key=lambda name: held[name])
        # The order of the dict is that of age.
        self._drop(next(key for key in self._kept if key[0] == client))

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._kept:
            # All live equally long, so the oldest one is the first to expire.
            key, first = next(iter(self._kept.items()))
            if now < first.until:
                return
            self._drop(key)


class ClientResponses:
    """The stored responses of one client.

    Args:
        store: Those of all.
        client: The client's credential.
    """

    def __init__(self, store: ResponseStore, client: str) -> None:
        self._store = store
        self._client = client

    def stored_body(self, name: str) -> bytes:
        """The response as it was sent. Raises RefusalError (404) where there is none."""
        return self._found(name, None).unpack_body()

    def earlier_chat(self, name: str) -> list[dict[str, Any]]:
        """The messages up to a response, and its own. Raises RefusalError (404) where there is none."""
        # Read anew each time: whoever gets the messages may change them.
        return json.loads(self._found(name, "previous_response_id").unpack_chat())

    def forget_response(self, name: str) -> None:
        """Forget a response. Raises RefusalError (404) where there is none."""
        if not self._store.forget_response(self._client, name):
            raise _missing(name, None)

    def keep_response(self, name: str, body: bytes, chat: Sequence[Mapping[str, Any]]) -> bool:
        """Keep a response.

        Args:
            name: Its id.
            body: The response as JSON.
            chat: The messages up to it, and its own.

        Returns:
            Whether there is room for it.
        """
        return self._store.keep_response(self._client, name, body, json.dumps(chat).encode())

    def _found(self, name: str, param: str | None) -> StoredResponse:
        found = self._store.find_response(self._client, name)
        if found is None:
            raise _missing(name, param)
        return found


def _missing(name: str, param: str | None) -> RefusalError:
    """Of an id that never was, of one that has expired, and of another client's: all the same."""
    # Where the id stood in the address, there is no field to name.
    if param is None:
        what = "response"
    else:
        what = param
    return RefusalError(
        f"{what} is {short_repr(name)}: no response of that id is kept for you; it was not stored, has expired or was deleted, "
        "or the server was started anew",
        status=404,
        param=param,
        code="response_not_found",
    )
