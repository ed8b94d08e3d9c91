"""A body as it comes in: bounded in bytes and in time, and answered even where it is too large."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from polydec.serve.errors import RefusalError

PATIENCE = 30.0
"""Seconds that a client has to send its body."""
SWALLOWED = 64 << 20
"""Bytes of a body that are let in and thrown away: a client that still writes does not read, and a connection that is closed
under it loses the answer."""
POLITE = 5.0
"""Seconds for that where nobody is let in."""


async def read_bytes(request: Request, most: int) -> bytes:
    """Read the body of a request.

    Args:
        request: The request.
        most: Bytes that a body may have.

    Returns:
        The body.

    Raises:
        RefusalError: The body is too large (413), does not come in time (408), or its client leaves
            (499).
    """
    parts = list[bytes]()
    size = 0
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and len(declared) < 20:
        wanted = int(declared)
    else:
        wanted = 0
    waits = request.headers.get("expect", "").lower() == "100-continue"
    # A client that waits for a go-ahead, or whose body is too large to swallow, is refused at once.
    if wanted > most and (waits or wanted > SWALLOWED):
        raise _too_large(most)
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                    continue
                # Too large: the rest is read and dropped, so that the client gets to read the
                # refusal.
                parts.clear()
                if size > SWALLOWED:
                    break
    except TimeoutError:
        raise RefusalError(
            f"the body did not come within {PATIENCE:g} seconds", status=408, code="timeout"
        ) from None
    except ClientDisconnect:
        raise RefusalError("the client has left", status=499, code="left") from None
    if size > most:
        raise _too_large(most)
    return b"".join(parts)


def _too_large(most: int) -> RefusalError:
    return RefusalError(
        f"the body has more than {most} bytes, which is what this server takes", status=413
    )


async def discard_request_body(receive: Receive) -> None:
    """Throw away the body of a request that is refused before anybody reads it.

    So its client comes to see the answer.

    Args:
        receive: Gives the next message of the connection.
    """
    size = 0
    try:
        async with asyncio.timeout(POLITE):
            while size <= SWALLOWED:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return
