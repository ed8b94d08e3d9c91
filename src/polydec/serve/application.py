"""What every server of ours is made of, whatever its routes: the gate, errors in OpenAI's form, and an end that waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from polydec.base.options import short_repr
from polydec.base.version import PACKAGE_VERSION
from polydec.serve.errors import RefusalError
from polydec.serve.gate import AccessGate, refusal_response
from polydec.serve.metrics import ServerMetrics
from polydec.serve.quotas import ApiKey
from polydec.serve.replica_counts import COUNTS_NAME, ReplicaCounts
from polydec.serve.request_log import REQUEST_ID, RequestLog, RequestRecorder, record_of

log = logging.getLogger("polydec.serve")

IGNORED = "X-Polydec-Ignored"
"""The header of an answer that names the fields of its request which were left out."""


def create_base_app(
    models: Any,
    lifespan: Callable[[FastAPI], Any],
    metrics: ServerMetrics,
    *,
    keys: tuple[str | ApiKey, ...],
    local: bool,
    origins: tuple[str, ...] = (),
    described: bool = True,
    replica: bool = False,
    request_log: RequestLog | None = None,
    notes: ReplicaCounts | None = None,
) -> FastAPI:
    """Make an application without routes: the gate, errors in OpenAI's form, and cross-origin
    rules.

    Args:
        models: What `app.state.models` is.
        lifespan: Context manager around the application's life.
        metrics: Counters of the server.
        keys: API keys, any of which lets a client in; none: no key is needed.
        local: Whether a server without keys answers only to this machine's names.
        origins: Origins of web pages that may use it, ``*`` for all. Default: none.
        described: Whether it serves its own OpenAPI description. Default True.
        replica: Whether a front says whose requests these are. Default False.
        request_log: Where to write a line for each request. None: nowhere.
        notes: Keeps what each request took for a front. None: none asks.

    Returns:
        The application.
    """
    app = FastAPI(
        title="polydec",
        version=PACKAGE_VERSION,
        lifespan=lifespan,
        openapi_url="/openapi.json" if described else None,
        docs_url=None,  # FastAPI's own pages come from another site
        redoc_url=None,
        # A slash too many is a 404: a redirection would name the scheme and the host that a proxy
        # in front uses for this server, and not those of the client.
        redirect_slashes=False,
    )
    app.state.models = models
    app.add_middleware(
        AccessGate, keys=keys, metrics=metrics, local=local and not keys, replica=replica
    )
    if origins:  # outside of the gate: a browser asks first, and has no key then
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(IGNORED, "Retry-After", REQUEST_ID),
        )
    # Outside of all of it: what is refused is named and logged as well.
    app.add_middleware(
        RequestRecorder, request_log=request_log, notes=notes, counts_header=COUNTS_NAME
    )

    @app.exception_handler(RefusalError)
    async def refuse(request: Request, error: RefusalError) -> JSONResponse:
        """Answer a request that was refused.

        Args:
            request: The request.
            error: Why it was refused.

        Returns:
            The error in OpenAI's form.
        """
        return refusal_response(error, metrics, request.scope)

    @app.exception_handler(HTTPException)
    async def missing(request: Request, error: HTTPException) -> JSONResponse:
        """Answer a request whose path or method the server does not have.

        Args:
            request: The request.
            error: What the router said.

        Returns:
            The error in OpenAI's form.
        """
        messages = {
            404: f"there is no {short_repr(request.url.path)} here",
            405: f"{request.method} is not for {request.url.path}",
        }
        return refusal_response(
            RefusalError(messages.get(error.status_code, error.detail), status=error.status_code),
            metrics,
            request.scope,
        )

    @app.exception_handler(Exception)
    async def broke(request: Request, error: Exception) -> JSONResponse:
        """Answer a request that failed for a fault of the server, and log the fault.

        Args:
            request: The request.
            error: The fault, which the client does not see.

        Returns:
            An internal error in OpenAI's form.
        """
        request_id = record_of(request.scope).request_id
        log.error("request %s failed", request_id, exc_info=error)
        response = refusal_response(
            RefusalError("the request failed inside the server", status=500, code="internal"),
            metrics,
            request.scope,
        )
        # Starlette answers faults outside of every layer, and so outside of the one that adds this.
        response.headers[REQUEST_ID] = request_id
        # The connection ends behind a fault: a client that does not know would send its next
        # request while it is being closed, and lose it.
        response.headers["Connection"] = "close"
        return response

    return app


async def until_idle(live: Callable[[], int], seconds: float) -> None:
    """Wait until nothing is under way.

    Args:
        live: Gives the number of requests under way.
        seconds: The longest wait.
    """
    end = time.monotonic() + seconds
    while live() and time.monotonic() < end:
        await asyncio.sleep(0.02)
