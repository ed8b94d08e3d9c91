"""Who may come in: keys, host names, kinds and sizes of bodies."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from polydec.base.options import short_repr
from polydec.serve.arrival import discard_request_body
from polydec.serve.clients import (
    HEADER,
    ClientIdentity,
    address_of,
    attach_client,
    client_of,
    from_header,
)
from polydec.serve.errors import RefusalError
from polydec.serve.metrics import ServerMetrics
from polydec.serve.quotas import ApiKey, QuotaBook, as_api_keys
from polydec.serve.request_log import record_of

OPEN = ("/", "/health")
"""Paths that need no key: the page asks for one itself, and who restarts a server has none."""

LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
"""Names of this machine. A server without a key answers to no other: a page in a browser could give one of its own."""


_USAGE = "polydec.usage"
"""Where the gate notes in a request's scope what its key has taken."""


class AccessGate:
    """The outermost layer of an application: it lets requests in, or answers them itself.

    Args:
        app: What lies behind it.
        keys: API keys, any of which opens; none: whoever reaches the server may use it.
        metrics: Counters of the server.
        local: Whether the server answers only to the names of this machine.
        replica: Whether the only client is a front, which says whose request it hands on. Default
            False.
        clock: Gives the time in seconds, by which quotas are counted. Default `time.monotonic`.

    Attributes:
        quotas: What each key has taken.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Iterable[str | ApiKey],
        metrics: ServerMetrics,
        local: bool,
        replica: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.local = local
        self.replica = replica
        self.keys = as_api_keys(keys)
        # Digests are equally long: how long a comparison takes says nothing about a key's length.
        self.digests = [_digest(key.secret) for key in self.keys]
        quotas = {_credential(at): key.quota for at, key in enumerate(self.keys)}
        self.quotas = QuotaBook(quotas, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self.check_request(scope)
            # After the check: a client without a key uses up nobody's quota.
            self.admit_request(scope)
        except RefusalError as refusal:
            # A client that still writes would lose the answer.
            await discard_request_body(receive)
            await refusal_response(refusal, self.metrics, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def check_request(self, scope: Scope) -> None:
        """Let a request in, and note who sent it.

        Args:
            scope: The request's scope.

        Raises:
            RefusalError: The host's name, the key or the kind of body is wrong.
        """
        headers = Headers(scope=scope)
        # Of whoever is refused below the log knows the address, by which wrong keys can be counted.
        record_of(scope).client = address_of(scope) or None
        # Against DNS rebinding: a page of another site can reach this machine only by a name of its
        # own.
        if self.local and _host(headers.get("host", "")) not in LOCAL:
            raise RefusalError(
                f"host {short_repr(headers.get('host', ''))} is not this machine: a server without a key answers to "
                "localhost only",
                status=403,
                code="wrong_host",
            )
        credential = ""
        label = ""
        if self.digests and scope["path"] not in OPEN:
            kind, _, key = headers.get("authorization", "").partition(" ")
            digest = _digest(key.strip())
            # each key is compared, in constant time: how long it takes tells nothing of them
            right = [hmac.compare_digest(digest, known) for known in self.digests]
            if kind.lower() != "bearer" or True not in right:
                raise RefusalError(
                    "the API key is missing or wrong: send it as `Authorization: Bearer KEY`",
                    status=401,
                    code="invalid_api_key",
                )
            # A key's place stands for it from here on: nothing behind the gate knows the key
            # itself.
            at = right.index(True)
            credential = _credential(at)
            # Many may read a log, so it never holds a key.
            label = self.keys[at].name or digest.hex()[:8]
        if self.replica:
            client = from_header(headers.get(HEADER, ""))
        else:
            client = ClientIdentity(credential, address_of(scope), label)
        attach_client(scope, client)
        record_of(scope).client = client.label or client.account
        # Only JSON: a page of another site may send a form without asking, but no JSON.
        if (
            scope["method"] == "POST"
            and headers.get("content-type", "").partition(";")[0].strip() != "application/json"
        ):
            raise RefusalError(
                "the body must be JSON, with `Content-Type: application/json`", status=415
            )

    def admit_request(self, scope: Scope) -> None:
        """Count a request that asks for work, and have what it takes counted when it is over.

        Args:
            scope: The request's scope.

        Raises:
            RefusalError: Its key has taken what it may.
        """
        usage = self.quotas.usage_of(client_of(scope).credential)
        scope[_USAGE] = usage
        # Only what is posted makes work; to look at the models or at the figures is free.
        if scope["method"] != "POST":
            return
        usage.admit_request()
        record_of(scope).when_ended(lambda record: usage.charge_tokens(record.counts.charged_tokens))


def count_answers(scope: Scope, count: int) -> None:
    """Count answers of a request against its key's quota, until the response is over.

    Args:
        scope: The request's scope.
        count: How many answers.

    Raises:
        RefusalError: They are too many.
    """
    usage = scope.get(_USAGE)
    # Without a gate there are no keys, and nothing to count.
    if usage is not None:
        end_answers = usage.begin_answers(count)
        record_of(scope).when_ended(lambda _: end_answers())


def refusal_response(refusal: RefusalError, metrics: ServerMetrics, scope: Scope) -> JSONResponse:
    """Make the response to a request that is refused, and count it.

    Args:
        refusal: Why it is refused.
        metrics: Counters of the server.
        scope: The request's scope.

    Returns:
        The error in OpenAI's form.
    """
    refusal.request_id = record_of(scope).request_id
    metrics.refused.labels("", str(refusal.status)).inc()
    return JSONResponse(refusal.to_json(), refusal.status, refusal.headers)


def _credential(at: int) -> str:
    return f"key-{at}"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and (":" not in name or name.endswith("]")):
        return name
    return host


def is_loopback_address(host: str) -> bool:
    """Whether an address to bind to is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
