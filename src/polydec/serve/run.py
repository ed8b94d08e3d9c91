"""The process: where it listens, when it stops, and what it says then."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Collection
from types import FrameType

import uvicorn
from fastapi import FastAPI

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.serve.connection import PART, BoundedConnection
from polydec.serve.gate import is_loopback_address
from polydec.serve.memory import one_arena
from polydec.serve.models import ServedModels
from polydec.serve.quotas import ApiKey

IDLE_SECONDS = 15
"""Seconds that a connection may stay open between two requests. Clients on httpx, OpenAI's among them, drop theirs after 5: a
server that closes at the same moment resets the request that is just being sent."""


class DrainingServer(uvicorn.Server):
    """A server that ends after a drain: what is under way may end, and what could not is counted in
    its last message.

    Args:
        config: How uvicorn runs the application.
        models: The models, or the fleet of replicas.
        seconds: Time that requests under way have.
    """

    def __init__(self, config: uvicorn.Config, models: ServedModels, seconds: float) -> None:
        super().__init__(config)
        self.models = models
        self.seconds = seconds
        self._told = False
        self.interrupted = (
            False  # by Ctrl-C; uvicorn raises it again, but the event loop may lose that
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End on a signal: SIGTERM is an ordinary end, any other one is passed on after it.

        Args:
            sig: Number of the signal.
            frame: Where it came.
        """
        if sig == signal.SIGTERM:  # an ordinary end: the exit code is 0
            self.should_exit = True
        else:
            self.interrupted = True
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        states = set(self.models.states.values())
        # A server without one of its models is of no use to whoever started it.
        if "failed" in states:
            self.should_exit = True
        if states == {"ready"} and not self._told:
            self._told = True
            print_server_notice(f"{', '.join(self.models.loaders)} ready")
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        under_way = self.models.live
        began = time.monotonic()
        draining = asyncio.create_task(self.models.drain_requests(self.seconds))
        # While answers are written, who else comes is told that the server stops, and when to come
        # again. A socket that is closed would reset those whose requests have not been read.
        while not draining.done() and not self.force_exit:
            await asyncio.sleep(0.02)
        # All of the end takes no longer than it may: what the drain took, uvicorn does not get.
        limit = self.config.timeout_graceful_shutdown
        if limit is not None:
            taken = int(time.monotonic() - began)
            self.config.timeout_graceful_shutdown = max(1, limit - taken)
        await super().shutdown(sockets)
        draining.cancel()
        cut = self.models.cut
        print_server_notice(
            f"stopped: {under_way - cut} requests under way were finished, {cut} were cut"
            if under_way
            else "stopped: nothing was under way"
        )


def print_server_notice(what: str) -> None:
    """One line on standard error."""
    print(f"polydec: {what}", file=sys.stderr, flush=True)


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Open the socket to serve on.

    Its connections send small pieces at once (TCP_NODELAY). asyncio sees to that for sockets that
    it makes itself only; for others the second piece of an answer waits until the client has
    confirmed the first: 40 ms on Linux.

    Args:
        host: Address to listen on.
        port: Port; 0 is any that is free.

    Returns:
        The socket.

    Raises:
        RequestError: It cannot be had.
    """
    if ":" in host:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise RequestError(
            error_sentence(
                f"{host} port {port} cannot be served on: {getattr(error, 'strerror', error)}"
            )
        ) from None


def check_address(host: str, keys: Collection[str | ApiKey], anyone: bool) -> None:
    """Refuse an address at which others could use the server without a key, unless somebody said
    that they may.

    Args:
        host: Address to listen on.
        keys: API keys of the server.
        anyone: Whether anybody may use it.

    Raises:
        RequestError: Others reach the address, and there is neither a key nor a permission.
    """
    if not is_loopback_address(host) and not keys and not anyone:
        raise RequestError(
            f"host is {host!r}, which others may reach, and there is no API key: give --api-key-file, or "
            "POLYDEC_API_KEY in the environment, or --without-key if anybody may use it"
        )


def uvicorn_config(
    app: FastAPI, drain: float, log_level: str = "error", access_log: bool = False
) -> uvicorn.Config:
    """Say how uvicorn runs an application: within bounds, and without a log of what clients do
    wrong.

    Args:
        app: The application.
        drain: Seconds that requests under way have at the end.
        log_level: Least level of uvicorn's own messages. Default "error".
        access_log: Whether uvicorn writes a line for each request, where the level is info or
            below. Default False.

    Returns:
        The configuration.
    """
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        h11_max_incomplete_event_size=PART,
        log_level=log_level,
        access_log=access_log,
        timeout_graceful_shutdown=int(drain) + 5,
        timeout_keep_alive=IDLE_SECONDS,
        server_header=False,
    )


def run_server(app: FastAPI, sock: socket.socket, *, drain: float, access_log: str = "off") -> None:
    """Serve until a signal comes.

    Args:
        app: The application, whose `app.state.models` are its models.
        sock: The socket to serve on.
        drain: Seconds that requests under way have at the end.
        access_log: Least level of uvicorn's own messages. Default "off": its errors alone.

    Raises:
        RequestError: A model cannot be loaded.
        KeyboardInterrupt: It was interrupted.
    """
    models: ServedModels = app.state.models
    # long prompts are encoded beside other threads; the tokenizer needs no threads of its own for that
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Before there are threads: the C library then gives none of them an arena of its own.
    one_arena()
    # Threads that compute in Python let the event loop in sooner: behind a request of 2,048 texts
    # to embed `/health` waited 253 ms with 1 ms here, and 92 ms with this.
    sys.setswitchinterval(0.0002)
    host, port = sock.getsockname()[:2]
    print_server_notice(
        f"http://{f'[{host}]' if ':' in host else host}:{port} (API under /v1, page at /); loading {', '.join(models.loaders)}"
    )
    level = "error" if access_log == "off" else access_log
    config = uvicorn_config(app, drain, level, access_log != "off")
    server = DrainingServer(config, models, drain)
    server.run(sockets=[sock])
    if server.interrupted:
        raise KeyboardInterrupt
    for why in models.failed.values():
        raise RequestError(why)
