"""The process: where it listens, when it stops, and what it says then."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.serve.connection import PART, BoundedConnection
from polydec.serve.gate import is_loopback_address
from polydec.serve.memory import one_arena
from polydec.serve.models import ServedModels


class DrainingServer(uvicorn.Server):
    """Ends after a drain: what is under way may end within `seconds`, and what could not is told."""

    def __init__(self, config: uvicorn.Config, models: ServedModels, seconds: float) -> None:
        super().__init__(config)
        self.models = models
        self.seconds = seconds
        self._told = False
        self.interrupted = (
            False  # by Ctrl-C; uvicorn raises it again, but the event loop may lose that
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM:  # an ordinary end: the exit code is 0
            self.should_exit = True
        else:
            self.interrupted = True
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        states = set(self.models.states.values())
        if "failed" in states:
            self.should_exit = True
        if states == {"ready"} and not self._told:
            self._told = True
            print_server_notice(f"{', '.join(self.models.loaders)} ready")
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        under_way = self.models.live
        draining = asyncio.create_task(self.models.drain(self.seconds))
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
    """The socket to serve on. Raises RequestError where it cannot be had.

    Its connections send small pieces at once (TCP_NODELAY). asyncio sees to that for sockets that it makes itself only; for
    others the second piece of an answer waits until the client has confirmed the first: 40 ms on Linux.
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


def check_address(host: str, keys: tuple[str, ...], anyone: bool) -> None:
    """Raises RequestError where others could use the server without a key, and nobody said that they may."""
    if not is_loopback_address(host) and not keys and not anyone:
        raise RequestError(
            f"host is {host!r}, which others may reach, and there is no API key: give --api-key-file, or "
            "POLYDEC_API_KEY in the environment, or --without-key if anybody may use it"
        )


def uvicorn_config(app: FastAPI, drain: float, log_level: str = "error") -> uvicorn.Config:
    """How uvicorn runs an application here: what clients do wrong is told to them, and fills no log."""
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        h11_max_incomplete_event_size=PART,
        log_level=log_level,
        access_log=False,
        timeout_graceful_shutdown=int(drain) + 5,
        server_header=False,
    )


def run_server(app: FastAPI, sock: socket.socket, *, drain: float) -> None:
    """Serve until a signal comes. Raises RequestError where a model cannot be loaded."""
    models: ServedModels = app.state.models
    # long prompts are encoded beside other threads; the tokenizer needs no threads of its own for that
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    one_arena()
    # Threads that compute in Python let the event loop in sooner: behind a request of 2,048 texts
    # to embed `/health` waited 253 ms with 1 ms here, and 92 ms with this.
    sys.setswitchinterval(0.0002)
    host, port = sock.getsockname()[:2]
    print_server_notice(
        f"http://{f'[{host}]' if ':' in host else host}:{port} (API under /v1, page at /); loading {', '.join(models.loaders)}"
    )
    server = DrainingServer(uvicorn_config(app, drain), models, drain)
    server.run(sockets=[sock])
    if server.interrupted:
        raise KeyboardInterrupt
    for why in models.failed.values():
        raise RequestError(why)
