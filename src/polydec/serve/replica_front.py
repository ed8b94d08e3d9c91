"""What stands before several servers of the same models: it lets requests in, and sends each to one of them.

Only this process knows the replicas' key. What comes in is checked here for a key, sent to one replica (router.py), and handed
on as it comes back. Where a replica dies it is started anew; a request of which nothing was handed on yet goes to another one,
any other ends with an error. What an answer took is asked of its replica when it is over: this process keeps the only log, and
counts what each key takes of all replicas together.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from polydec.serve.application import IGNORED, create_base_app, until_idle
from polydec.serve.arrival import read_bytes
from polydec.serve.clients import HEADER, client_of
from polydec.serve.endpoints import ENDPOINTS
from polydec.serve.errors import RefusalError
from polydec.serve.gate import count_answers
from polydec.serve.known_fields import EMBEDDINGS, TEXT
from polydec.serve.metrics import ServerMetrics
from polydec.serve.quotas import ApiKey
from polydec.serve.replica_counts import COUNTS_NAME, COUNTS_PATH, counts_from_json
from polydec.serve.request_log import (
    REQUEST_ID,
    RequestLog,
    RequestRecord,
    ResponseCounts,
    record_of,
)
from polydec.serve.router import ReplicaRouter, prefix_block_hashes, prompt_beginning
from polydec.serve.settings import RequestLimits

LOOK = 0.5
"""Seconds between two looks at replicas that are not ready."""
PASSED = (
    "content-type",
    "retry-after",
    "content-security-policy",
    "x-content-type-options",
    "referrer-policy",
    "cache-control",
    IGNORED.lower(),
)
"""Headers of a replica's answer that are handed on."""
_LAST_EVENT = re.compile(
    rb"^(?:data: \[DONE\]|event: response\.(?:completed|incomplete|failed))$", re.MULTILINE
)
"""A line of an event behind which no other one comes. Texts of answers stand in JSON, where a line never begins."""
GONE = (httpx.TransportError, httpx.StreamError)
"""What a connection says when its replica has gone."""


class ReplicaFleet:
    """The replicas, as run.py and the routes know a server's models.

    Args:
        count: How many replicas.
        start: Starts one, given its key.
        names: Names of the models.
        end: Ends one.
        failures: What one raises that has died.

    Attributes:
        ports: Port of each replica that is ready, by its number.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[str], Any],
        names: tuple[str, ...],
        end: Callable[[Any], None],
        failures: tuple[type[Exception], ...] = (),
    ) -> None:
        self._end = end
        self._failures = failures
        self.key = secrets.token_hex(16)
        self.loaders = dict.fromkeys(names)
        self.router = ReplicaRouter(count)
        self.actors = [start(self.key) for _ in range(count)]
        self.ports: dict[int, int] = {}
        self.failed: dict[str, str] = {}
        self.draining = False
        self.cut = 0
        self.under_way = set[asyncio.Task[Any]]()
        self.client = httpx.AsyncClient(
            timeout=None, limits=httpx.Limits(max_connections=None), trust_env=False
        )

    @property
    def states(self) -> dict[str, str]:
        """Of each replica: ready, loading or failed."""
        return {
            f"replica {i}": "ready"
            if i in self.ports
            else "failed"
            if f"replica {i}" in self.failed
            else "loading"
            for i in range(len(self.actors))
        }

    @property
    def live(self) -> int:
        """Requests under way."""
        return sum(self.router.busy)

    async def watch_replicas(self) -> None:
        """Look for replicas that have become ready, until cancelled."""
        while True:
            await asyncio.gather(
                *(self._look(i) for i in range(len(self.actors)) if i not in self.ports)
            )
            await asyncio.sleep(LOOK)

    async def _look(self, i: int) -> None:
        with suppress(*self._failures, asyncio.TimeoutError):
            port, states, failed = await asyncio.wait_for(self.actors[i].current_state.remote(), 60)
            # Requests come only to a replica with all of its models.
            if set(states.values()) == {"ready"}:
                self.ports[i] = port
            elif failed:
                self.failed[f"replica {i}"] = next(iter(failed.values()))

    def note_lost(self, i: int, port: int) -> None:
        """Note that a replica does not answer any more.

        It may have been started anew since, at another port: then it stays.

        Args:
            i: Number of the replica.
            port: Port at which it did not answer.
        """
        if self.ports.get(i) == port:
            del self.ports[i]
            self.router.forget_replica(i)

    async def drain_requests(self, seconds: float) -> None:
        """Take no more requests, and wait for those under way.

        Args:
            seconds: After this time what is left is cancelled.
        """
        self.draining = True
        await until_idle(lambda: self.live, seconds)
        self.cut = self.live
        for task in list(self.under_way):
            task.cancel()

    async def close(self) -> None:
        """End the replicas."""
        await self.client.aclose()
        for actor in self.actors:
            self._end(actor)


def create_front(
    fleet: ReplicaFleet,
    *,
    limits: RequestLimits,
    keys: tuple[str | ApiKey, ...] = (),
    local: bool = True,
    origins: tuple[str, ...] = (),
    request_log: RequestLog | None = None,
) -> FastAPI:
    """Make the application that stands before the replicas.

    `app.state.models` is the fleet.

    Args:
        fleet: The replicas.
        limits: Limits of requests.
        keys: API keys, any of which lets a client in. Default: no key is needed.
        local: Whether a front without keys answers only to this machine's names. Default True.
        origins: Origins of web pages that may use it.
        request_log: Where to write a line for each request; it is closed with the application.
            None: nowhere.

    Returns:
        The application.
    """
    metrics = ServerMetrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(fleet.watch_replicas())
        yield
        watching.cancel()
        await fleet.close()
        if request_log is not None:
            # Last, for the requests that end only now; in a thread, as it waits for the disk.
            await asyncio.to_thread(request_log.close_log)

    app = create_base_app(
        fleet,
        lifespan,
        metrics,
        keys=keys,
        local=local,
        origins=origins,
        described=False,
        request_log=request_log,
    )

    @app.get("/health")
    async def health() -> JSONResponse:
        if fleet.draining:
            ready = "stopping"
        elif fleet.ports:
            ready = "ready"
        else:
            ready = next(
                (s for s in ("loading", "failed") if s in fleet.states.values()), "loading"
            )
        return JSONResponse(
            {"status": ready, "replicas": fleet.states}, 200 if ready == "ready" else 503
        )

    @app.get("/metrics")
    async def measured() -> Response:
        return Response(
            await _metrics(fleet), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @app.api_route("/{path:path}", methods=["GET", "POST", "DELETE"])
    async def hand_on(request: Request, path: str) -> Response:
        """Hand a request on to a replica.

        Args:
            request: The request.
            path: Its path, which the replica reads from the request itself.

        Returns:
            The replica's answer.
        """
        # What a replica says to this process is nobody else's.
        if request.url.path.startswith(COUNTS_PATH):
            raise HTTPException(404)
        if request.method == "POST":
            body = await read_bytes(request, limits.body)
            record_of(request.scope).note_body(body)
        else:
            body = b""
        return await _handed_on(fleet, request, body)

    return app


async def _handed_on(fleet: ReplicaFleet, request: Request, body: bytes) -> Response:
    """The answer of one replica. Where that dies before anything of it was handed on, of another one."""
    if fleet.draining:
        raise RefusalError(
            "the server stops: it takes no more requests", status=503, code="stopping", retry=5
        )
    fields = _json(body)
    answers = count_asked_answers(request.url.path, fields)
    if request.method == "POST" and answers:
        # Here and not by a replica, which knows its own part only.
        count_answers(request.scope, answers)
    # Replicas keep caches of prompts: a request goes where most of its beginning was read.
    prompt = prefix_block_hashes(prompt_beginning(fields), client_of(request.scope).credential)
    tried = set[int]()
    while True:
        i = fleet.router.choose_replica(prompt, fleet.ports.keys() - tried)
        if i is None:
            raise RefusalError(
                "no replica could answer: each is being loaded, or died"
                if not tried
                else f"{len(tried)} replicas died while they answered this",
                status=503,
                code="no_replica",
                retry=5,
            )
        # A replica is tried once for each request, so that the loop ends.
        tried.add(i)
        place = ReplicaSlot(fleet, i)
        fleet.router.note_sent(i, prompt)
        try:
            response = await _sent(fleet, place.port, request, body)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                # Its head is with the client soon: from here on another replica cannot take over.
                return ProxyStream(
                    place, response, record_of(request.scope)
                )  # which gives the place back
            content = await _whole(request, response)
            # Before it is handed on: the next request of the client counts with this one.
            await record_of(request.scope).collect_counts()
            place.leave_slot()
            return Response(content, response.status_code, _passed(response))
        except GONE:
            # Nothing was handed on yet: the next replica may answer as if nothing had happened.
            fleet.note_lost(i, place.port)
            place.leave_slot()
        except BaseException:
            place.leave_slot()
            raise


class ReplicaSlot:
    """A request under way at a replica, until it leaves."""

    def __init__(self, fleet: ReplicaFleet, i: int) -> None:
        self.fleet = fleet
        self.i = i
        self.port = fleet.ports[i]
        self._here = True
        fleet.router.busy[i] += 1

    def leave_slot(self) -> None:
        if self._here:
            self._here = False
            self.fleet.router.busy[self.i] -= 1


class ProxyStream(StreamingResponse):
    """A stream that is handed on. Whether or not it ever begins, the replica's connection is closed
    after it.

    Args:
        place: The replica's slot, which is left at the end.
        response: The replica's answer, of which the head has come.
        record: The request's record.
    """

    def __init__(self, place: ReplicaSlot, response: httpx.Response, record: RequestRecord) -> None:
        super().__init__(
            _streamed(place, response, record), response.status_code, _passed(response)
        )
        self._place = place
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.leave_slot()
            with suppress(Exception):
                await self._response.aclose()


async def _sent(fleet: ReplicaFleet, port: int, request: Request, body: bytes) -> httpx.Response:
    """A replica's answer, of which the head has come. A client that leaves meanwhile ends the request."""
    record = record_of(request.scope)
    # A name of our own: clients may give two requests one id.
    name = secrets.token_hex(16)
    record.ask_counts = partial(_ask_counts, fleet, port, name, record, time.perf_counter())
    headers = {
        "authorization": f"Bearer {fleet.key}",
        HEADER: client_of(request.scope).to_header(),
        REQUEST_ID: record.request_id,
        COUNTS_NAME: name,
    } | {k: v for k, v in request.headers.items() if k in ("content-type", "accept")}
    url = httpx.URL(f"http://127.0.0.1:{port}{request.url.path}", query=request.url.query.encode())
    sent = fleet.client.build_request(request.method, url, headers=headers, content=body or None)
    return await _unless_left(request, fleet.client.send(sent, stream=True))


async def _ask_counts(
    fleet: ReplicaFleet, port: int, name: str, record: RequestRecord, sent: float
) -> None:
    """Ask a replica what an answer took, and write it into the request's record; nothing where the replica has gone."""
    url = f"http://127.0.0.1:{port}{COUNTS_PATH}{name}"
    try:
        answer = await fleet.client.get(url, headers={"authorization": f"Bearer {fleet.key}"})
        told = answer.json()
    except (*GONE, RuntimeError, ValueError):
        # A client that is closed says RuntimeError: the front ends.
        return
    if told:
        record.model = told["model"]
        record.counts = counts_from_json(told, sent)


def count_asked_answers(path: str, fields: Mapping[str, Any]) -> int:
    """Count the answers that a request asks for. What is wrong with it is said by whoever answers it.

    Args:
        path: Path of the request.
        fields: Fields of its body.

    Returns:
        How many answers count against the quota of its key; 0 where the path gives none.
    """
    if path not in (*ENDPOINTS, EMBEDDINGS):
        return 0
    each = [fields.get(name) for name in ("n", "best_of")]
    prompts = fields.get("prompt")
    many = 1
    if (
        path == TEXT
        and isinstance(prompts, list)
        and prompts
        and isinstance(prompts[0], (str, list))
    ):
        many = len(prompts)  # pyright: ignore[reportUnknownArgumentType]
    return many * max([1, *(n for n in each if type(n) is int)])


async def _whole(request: Request, response: httpx.Response) -> bytes:
    try:
        return await _unless_left(request, response.aread())
    finally:
        await response.aclose()


async def _unless_left(request: Request, waited: Any) -> Any:
    """What is waited for; cancelled where the client leaves first."""
    doing = asyncio.ensure_future(waited)
    leaving = asyncio.ensure_future(_left(request))
    fleet: ReplicaFleet = request.app.state.models
    fleet.under_way.add(doing)
    try:
        # Whichever comes first: the answer, or the end of the client's connection.
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise RefusalError("the client has left", status=499, code="left")
        if doing.cancelled():
            raise RefusalError("the server stops", status=503, code="stopping", retry=5)
        return doing.result()
    finally:
        leaving.cancel()
        doing.cancel()
        fleet.under_way.discard(doing)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _streamed(
    place: ReplicaSlot, response: httpx.Response, record: RequestRecord
) -> AsyncIterator[bytes]:
    """A stream, event by event. Where its replica dies, or the server stops, it ends with an error."""
    fleet = place.fleet
    me = asyncio.current_task()
    assert me is not None
    fleet.under_way.add(me)
    unsent = b""
    code = ""
    try:
        async for part in response.aiter_raw():
            # Only complete events are handed on: an error may follow any of them.
            whole, mark, unsent = (unsent + part).rpartition(b"\n\n")
            if not mark:
                continue
            # Before the last event is handed on, as clients stop reading there: the next request
            # counts with this one.
            if _LAST_EVENT.search(whole):
                await record.finish_record()
            yield whole + mark
    except GONE:
        fleet.note_lost(place.i, place.port)
        # Of a whole answer only the end of the connection is lost.
        if record.ask_counts is not None:
            code = "replica_died"
            # Nobody knows any more what it took.
            record.ask_counts = None
            record.counts = ResponseCounts(reasons=(code,))
    except asyncio.CancelledError:
        if fleet.cut and me.uncancel() == 0:  # the server stops; else the client has left
            code = "stopping"
        else:
            raise
    finally:
        fleet.under_way.discard(me)
    if code:
        why = {"replica_died": "the replica that wrote this died", "stopping": "the server stops"}[
            code
        ]
        yield f"data: {json.dumps(RefusalError(why, status=503, code=code).to_json())}\n\n".encode()


async def _metrics(fleet: ReplicaFleet) -> str:
    """Those of all replicas, each with a label that names it."""
    lines = list[str]()
    described = set[str]()
    # HELP and TYPE lines once, samples of every replica with its number as a label.
    for i, port in sorted(fleet.ports.items()):
        try:
            text = (
                await fleet.client.get(
                    f"http://127.0.0.1:{port}/metrics",
                    headers={"authorization": f"Bearer {fleet.key}"},
                )
            ).text
        except GONE:
            fleet.note_lost(i, port)
            continue
        for line in text.splitlines():
            if line.startswith("#"):
                if line not in described:
                    lines.append(line)
                described.add(line)
            elif line:
                name, brace, rest = line.partition("{")
                label = f'replica="{i}"'
                lines.append(
                    f"{name}{{{label},{rest}" if brace else line.replace(" ", f"{{{label}}} ", 1)
                )
    return "\n".join(lines) + "\n"


def _passed(response: httpx.Response) -> dict[str, str]:
    return {k: v for k, v in response.headers.items() if k in PASSED}


def _json(body: bytes) -> Mapping[str, Any]:
    """A body's fields, as far as they can be read: a damaged one is refused by a replica."""
    try:
        # Only to choose a replica: which one does not matter for a body that no replica takes.
        data = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}  # pyright: ignore[reportUnknownVariableType]
