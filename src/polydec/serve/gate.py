"""Who may come in: keys, host names, kinds and sizes of bodies."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from polydec.base.edge import read_bytes
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.serve.arrival import discard_request_body
from polydec.serve.clients import HEADER, ClientIdentity, address_of, attach_client, from_header
from polydec.serve.errors import RefusalError
from polydec.serve.metrics import ServerMetrics
from polydec.serve.request_log import record_of

OPEN = ("/", "/health", "/docs", "/openapi.json")
"""Paths that need no key: the page asks for one itself, who restarts a server has none, and what can be asked is no secret."""

LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
"""Names of this machine. A server without a key answers to no other: a page in a browser could give one of its own."""


class AccessGate:
    """The outermost layer of an application: it lets requests in, or answers them itself.

    Args:
        app: What lies behind it.
        keys: API keys, any of which opens; none: whoever reaches the server may use it.
        metrics: Counters of the server.
        local: Whether the server answers only to the names of this machine.
        replica: Whether the only client is a front, which says whose request it hands on. Default
            False.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Iterable[str],
        metrics: ServerMetrics,
        local: bool,
        replica: bool = False,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.local = local
        self.replica = replica
        self.digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self.check_request(scope)
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
        digest = b""
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
            credential = f"key-{right.index(True)}"
        if self.replica:
            client = from_header(headers.get(HEADER, ""))
        else:
            label = digest.hex()[:8] if credential else ""
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


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and (":" not in name or name.endswith("]")):
        return name
    return host


def read_keys(path: Path | None, environment: str | None) -> tuple[str, ...]:
    """Read API keys from a file and from the environment.

    Args:
        path: File with a key on each line; # begins a remark. None: no file.
        environment: A further key. None: there is none.

    Returns:
        The keys.

    Raises:
        RequestError: The file has none, or one is too short to keep anybody out.
    """
    if path is None:
        lines = []
    else:
        lines = read_bytes(path, 1 << 20).decode("utf-8-sig", "replace").splitlines()
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if path is not None and not keys:
        raise RequestError(f"file {str(path)!r} holds no API key: write one a line")
    if environment is not None:
        keys.append(environment.strip())
    for key in keys:
        if not key.isascii() or not key.isprintable() or " " in key or len(key) < 8:
            raise RequestError(
                "an API key must have at least 8 characters, printable ASCII without spaces"
            )
    return tuple(keys)


def is_loopback_address(host: str) -> bool:
    """Whether an address to bind to is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
