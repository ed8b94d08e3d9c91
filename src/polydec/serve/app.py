"""The routes."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from polydec import registry
from polydec.api import LM
from polydec.options import shown
from polydec.serve.application import application
from polydec.serve.body import Body, Wanted, read_body
from polydec.serve.endpoints import ENDPOINTS, Answer, Endpoint
from polydec.serve.errors import Refusal, refused
from polydec.serve.limits import Limits
from polydec.serve.metrics import Metrics
from polydec.serve.models import Models
from polydec.serve.shapes import read_messages
from polydec.serve.worker import LEFT, Answers
from polydec.shapers.sampling import fields as sampling_fields

PATIENCE = 30.0
"""Seconds that a client has to send its body."""

PAGE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def create_app(
    loaders: Mapping[str, Callable[[], LM]],
    *,
    limits: Limits | None = None,
    keys: tuple[str, ...] = (),
    method: str = "auto",
    local: bool = True,
) -> FastAPI:
    """The application. loaders: models by the names under which they are served; method: of requests that name none; local:
    without keys, answer only to this machine's names. `app.state.models` is what it works with."""
    registry.get(method)
    limits, metrics = limits or Limits(), Metrics()
    models = Models(loaders, limits, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(models.load())
        yield
        loading.cancel()
        await models.close()

    app = application(models, lifespan, metrics, keys=keys, local=local)

    async def body(request: Request) -> Body:
        return read_body(await read_bytes(request, limits.body))

    async def complete(request: Request, endpoint: Endpoint) -> Response:
        sent, shape = frozenset[str](), endpoint.reads()
        try:
            given = await body(request)
            sent = given.fields
            worker = models.find(given.take("model"))
            wanted = shape.read(given, worker.model, method, secrets.randbelow(1 << 31))
            answers = await worker.start(wanted.asks, steps=wanted.steps)
        except ValueError as error:
            raise refused(error, sent) from None
        reply = endpoint.answer(
            shape, wanted, worker.model, worker.name, secrets.token_hex(12), int(time.time())
        )
        return await _respond(request, reply, wanted, answers)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await complete(request, ENDPOINTS["/v1/chat/completions"])

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await complete(request, ENDPOINTS["/v1/completions"])

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await complete(request, ENDPOINTS["/v1/responses"])

    def card(name: str) -> dict[str, Any]:
        known = models.workers.get(name)
        about = {} if known is None else {"max_model_len": known.model.network.context}
        return {
            "id": name,
            "object": "model",
            "created": models.began,
            "owned_by": "polydec",
            **about,
        }

    @app.get("/v1/models")
    async def listed() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in models.loaders]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str) -> dict[str, Any]:
        if name not in models.loaders:
            models.find(name)  # raises
        return card(name)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        try:
            given = await body(request)
            model = models.find(given.take("model")).model
            special = given.take("add_special_tokens", True) if "prompt" in given.fields else True
            prompt, messages = given.take("prompt"), given.take("messages")
            given.end()
            if (prompt is None) == (messages is None):
                raise Refusal("give one of prompt and messages", param="prompt")
            if prompt is not None and not isinstance(prompt, str):
                raise Refusal(f"prompt is {shown(prompt)}: it must be a text", param="prompt")
            if prompt is not None:
                ids = await asyncio.to_thread(model.checkpoint.text.encode, prompt, bool(special))
            else:
                ids = await asyncio.to_thread(model.ids, read_messages(messages))
        except ValueError as error:
            raise refused(error, ("prompt", "messages")) from None
        return {"count": len(ids), "max_model_len": model.network.context, "tokens": list(ids)}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        try:
            given = await body(request)
            model = models.find(given.take("model")).model
            tokens = given.take("tokens")
            given.end()
            if not isinstance(tokens, list):
                raise Refusal(
                    f"tokens is {shown(tokens)}: it must be a list of token ids", param="tokens"
                )
            ids = model.ids(tokens) if tokens else ()
        except ValueError as error:
            raise Refusal(str(error).replace("prompt", "tokens", 1), param="tokens") from None
        return {"prompt": model.checkpoint.text.decode(ids)}

    @app.get("/tokenizer_info")
    async def tokenizer(model: str | None = None) -> dict[str, Any]:
        text = models.find(model).model.checkpoint.text
        return {
            "bos_token": None,
            "eos_token": None,
            **text.names,
            "chat_template": None if text.template is None else text.template.source,
        }

    @app.get("/methods")
    async def methods(model: str | None = None) -> dict[str, Any]:
        kit = models.find(model).model.kit()
        return {
            "object": "list",
            "default": method,
            "data": [_described(n, kit) for n in sorted(registry.recipes())],
        }

    @app.get("/sampling")
    async def sampling(model: str | None = None) -> dict[str, Any]:
        own = models.find(model).model.sampling()
        return {
            **_schema(
                {
                    name: {**o.schema(), "default": getattr(own, name)}
                    for name, o in sampling_fields().items()
                }
            )
        }

    @app.get("/health")
    async def health() -> JSONResponse:
        states = models.states
        state = (
            "stopping"
            if models.draining
            else next((s for s in ("failed", "loading") if s in states.values()), "ready")
        )
        return JSONResponse({"status": state, "models": states}, 200 if state == "ready" else 503)

    @app.get("/metrics")
    async def measured() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(
            files("polydec.serve").joinpath("page.html").read_text("utf-8"), headers=PAGE
        )

    return app


async def read_bytes(request: Request, most: int) -> bytes:
    """The body. Raises Refusal where it is too large, or does not come."""
    parts, size = list[bytes](), 0
    declared = request.headers.get("content-length", "0")
    try:
        async with asyncio.timeout(PATIENCE):
            if declared.isdigit() and int(declared) > most:
                size = int(declared)
            else:
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        break
                    parts.append(part)
    except TimeoutError:
        raise Refusal(f"the body did not come within {PATIENCE:g} seconds", status=408) from None
    if size > most:
        raise Refusal(
            f"the body has more than {most} bytes, which is what this server takes", status=413
        )
    return b"".join(parts)


async def _respond(request: Request, reply: Answer, wanted: Wanted, answers: Answers) -> Response:
    """The answer, whole or as a stream. A client that leaves ends its request."""
    leaving = asyncio.create_task(_left(request, answers))
    if wanted.stream:
        return StreamingResponse(
            _events(reply, answers, leaving),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
    try:
        async for news in answers.news():
            reply.take(news)
        return JSONResponse(reply.whole(answers.completions))
    finally:
        leaving.cancel()
        answers.cancel(LEFT)


async def _events(
    reply: Answer, answers: Answers, leaving: asyncio.Task[None]
) -> AsyncIterator[str]:
    """Server-sent events. What fails under way is told as an event with an error."""
    try:
        for chunk in reply.opening():
            yield _event(chunk)
        async for news in answers.news():
            for chunk in reply.chunks(news):
                yield _event(chunk)
        for chunk in reply.closing(answers.completions):
            yield _event(chunk)
        if reply.last:
            yield reply.last
    except Refusal as refusal:
        yield _event(reply.failed(refusal))
    finally:
        leaving.cancel()
        answers.cancel(LEFT)


async def _left(request: Request, answers: Answers) -> None:
    """Cancel the request when its client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answers.cancel(LEFT)


def _event(data: dict[str, Any]) -> str:
    named = f"event: {data['type']}\n" if "type" in data else ""
    return f"{named}data: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"


def _described(name: str, kit: Any) -> dict[str, Any]:
    """A method: its card, the JSON schema of its options, and why this model cannot be decoded by it (none: it can)."""
    about = registry.describe(name)
    try:
        registry.check(name, kit)
        why = None
    except ValueError as error:
        why = str(error)
    return {
        **about,
        "schema": _schema({k: o["schema"] for k, o in about["options"].items()}),
        "unavailable": why,
    }


def _schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
