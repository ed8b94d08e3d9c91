"""The routes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from polydec.api import LoadedModel
from polydec.base.edge import whole_text
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.laws.shapers.sampling import all_sampling_fields as sampling_fields
from polydec.methods.registry import registry, steer
from polydec.methods.registry.kit import (
    IMAGE,
    OWN_PROMPT,
    PLAIN_PROMPT,
    PROMPT_IMAGE,
    SECOND_PROMPT,
)
from polydec.models.text import prompt_ending
from polydec.request.embedding import embedding_vectors
from polydec.serve.answering import WRITERS, json_response, respond_to_request, unless_left
from polydec.serve.application import IGNORED, create_base_app
from polydec.serve.arrival import read_bytes
from polydec.serve.body import RequestBody, ResponseOptions, read_body
from polydec.serve.clients import client_of
from polydec.serve.decoded_images import decode_images, see_images
from polydec.serve.described import openapi_page_html as described_page
from polydec.serve.described import request_body_schema as described
from polydec.serve.embeddings import EmbeddingRequest
from polydec.serve.embeddings import read_embedding_request as read_embeddings
from polydec.serve.endpoints import ENDPOINTS, EndpointAnswer, ServerEndpoint
from polydec.serve.errors import RefusalError, refusal_from_error
from polydec.serve.gate import count_answers
from polydec.serve.images import IMAGES
from polydec.serve.memory import giving_back
from polydec.serve.metrics import ServerMetrics
from polydec.serve.models import ServedModels
from polydec.serve.quotas import ApiKey
from polydec.serve.replica_counts import COUNTS_PATH, ReplicaCounts
from polydec.serve.request_log import RequestLog, ResponseCounts, record_of
from polydec.serve.responses import ResponsesReader
from polydec.serve.settings import RequestLimits, ServerSettings
from polydec.serve.shapes import read_messages
from polydec.serve.stored_responses import ClientResponses, ResponseStore
from polydec.serve.template_fields import chat_ending
from polydec.serve.traced import ServerTrace
from polydec.serve.worker import ModelWorker

READERS = 16
"""Threads that read and check requests, so that the event loop has nothing to do for long. They are many because some wait for
the one worker that compiles constraints."""

T = TypeVar("T")

PAGE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def create_app(
    loaders: Mapping[str, Callable[[], LoadedModel]],
    *,
    limits: RequestLimits | None = None,
    keys: tuple[str | ApiKey, ...] = (),
    method: str = ServerSettings.method,
    local: bool = True,
    lenient: bool = False,
    origins: tuple[str, ...] = (),
    trace: ServerTrace | None = None,
    replica: bool = False,
    request_log: RequestLog | None = None,
    stored: ResponseStore | None = None,
) -> FastAPI:
    """Make the application that serves models over HTTP.

    `app.state.models` is the `ServedModels` that it works with.

    Args:
        loaders: What loads each model, by the name under which it is served. The first one answers
            requests that name no model.
        limits: Limits of each model's requests. None: the defaults.
        keys: API keys, any of which lets a client in. Default: no key is needed.
        method: Decoding method of requests that name none.
        local: Whether a server without keys answers only to this machine's names. Default True.
        lenient: Whether unknown fields of a request are ignored and named in a header, in place of
            refused. Default False.
        origins: Origins of web pages that may use the server.
        trace: Where to write what happens to requests. None: nowhere.
        replica: Whether a front (replica_front.py) hands requests on to this server and says whose they
            are. Default False.
        request_log: Where to write a line for each request; it is closed with the application.
            None: nowhere.
        stored: Where responses are kept whose request says so. None: a store of the usual size,
            and none behind a front, which does not know who has which.

    Returns:
        The application; models are loaded once it runs.

    Raises:
        RequestError: The method is unknown, or there is no model.
    """
    # An unknown method fails here, and not with the first request.
    registry.get_recipe_module(method)
    limits, metrics = limits or RequestLimits(), ServerMetrics()
    models = ServedModels(loaders, limits, metrics, trace)
    if stored is not None:
        store = stored
    elif replica:
        # The next turn of a chat may reach another replica.
        store = ResponseStore(0)
    else:
        store = ResponseStore()
    readers = ThreadPoolExecutor(READERS, "read")
    writers = ThreadPoolExecutor(WRITERS, "write")
    # A tower runs for one request at a time, and no reader waits for it.
    towers = ThreadPoolExecutor(1, "tower")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Models load while the server already answers /health.
        tasks = [asyncio.create_task(x) for x in (models.load(), giving_back(lambda: models.asked))]
        yield
        for task in tasks:
            task.cancel()
        readers.shutdown(wait=False, cancel_futures=True)
        writers.shutdown(wait=False, cancel_futures=True)
        towers.shutdown(wait=False, cancel_futures=True)
        await models.close()
        if request_log is not None:
            # Last, for the requests that end only now; in a thread, as it waits for the disk.
            await asyncio.to_thread(request_log.close_log)

    notes = ReplicaCounts() if replica else None
    app = create_base_app(
        models,
        lifespan,
        metrics,
        keys=keys,
        local=local,
        origins=origins,
        replica=replica,
        request_log=request_log,
        notes=notes,
    )
    if notes is not None:

        @app.get(COUNTS_PATH + "{name}", include_in_schema=False)
        async def counts_of(name: str) -> dict[str, Any]:
            return await notes.take_counts(name)

    async def reading(
        work: Callable[[RequestBody], T], request: Request, lenient: bool = False
    ) -> T:
        """Read a request's body and do something with it, in a thread of its own.

        Args:
            work: What to do with the body, in a reader's thread.
            request: The request.
            lenient: Whether unknown fields are ignored. Default False.

        Returns:
            What `work` returned.

        Raises:
            RefusalError: The body cannot be read, or `work` refuses it.
        """
        # The bytes are bounded while they come in, before anything is parsed.
        text = await read_bytes(request, limits.body)
        record_of(request.scope).note_body(text)
        models.asked += 1

        def read_once() -> T:
            # The fields as sent, so that an error names the field in the client's own words.
            sent = frozenset[str]()
            try:
                body = read_body(text, limits, lenient=lenient)
                sent = body.fields
                return work(body)
            except PolydecError as error:
                raise refusal_from_error(error, sent) from None

        return await asyncio.get_running_loop().run_in_executor(readers, read_once)

    async def complete(request: Request, endpoint: ServerEndpoint) -> Response:
        """Answer a request of one of the endpoints that decode.

        Args:
            request: The request.
            endpoint: The endpoint, which says how requests are read and answers are written.

        Returns:
            The response, complete or as a stream.

        Raises:
            RefusalError: The request cannot be honoured.
        """
        shape = endpoint.reads()
        if isinstance(shape, ResponsesReader) and store.most:
            # Of this client alone: the id of another one's response is as good as none.
            shape.kept = ClientResponses(store, client_of(request.scope).credential)

        def read(body: RequestBody) -> tuple[RequestBody, ModelWorker, ResponseOptions]:
            worker = models.find_worker(body.take_field("model"))
            # A request without a seed gets one, which its details report: it can be repeated.
            seed = secrets.randbelow(1 << 31)
            wanted = shape.read_request(body, worker.model, method, seed)
            # Here and not by the planner, for whom all requests wait.
            asks = decode_images(wanted.asks, worker.model)
            return body, worker, replace(wanted, asks=asks)

        body, worker, wanted = await reading(read, request, lenient)
        headers = _told(body.ignored)
        # Before anything is queued: what is refused here costs no pass.
        count_answers(request.scope, sum(ask.answer_count for ask in wanted.asks))
        # Only now, as a tower's pass is dear: what is refused above has cost none.
        if worker.model.checkpoint.vision is not None:
            seeing = asyncio.get_running_loop().run_in_executor
            asks = await seeing(towers, see_images, wanted.asks, worker.model)
            wanted = replace(wanted, asks=asks)
        try:
            answers = await worker.start_requests(
                wanted.asks, steps=wanted.steps, client=client_of(request.scope)
            )
        except PolydecError as error:
            raise refusal_from_error(error, body.fields) from None

        # From here on the log can say what was taken, also of an answer that is cut.
        record_of(request.scope).attach_answers(worker.name, answers)

        def answer_once() -> EndpointAnswer:
            # Made only once the request is admitted: id and time are those of the answer.
            name = secrets.token_hex(12)
            return endpoint.answer_writer(
                shape, wanted, worker.model, worker.name, name, int(time.time())
            )

        return await respond_to_request(request, writers, answer_once, wanted, answers, headers)

    @app.post(
        "/v1/chat/completions",
        summary="a chat, through the model's template",
        openapi_extra=described("/v1/chat/completions"),
    )
    async def chat(request: Request) -> Response:
        return await complete(request, ENDPOINTS["/v1/chat/completions"])

    @app.post(
        "/v1/completions",
        summary="texts or token ids, one or several",
        openapi_extra=described("/v1/completions"),
    )
    async def completions(request: Request) -> Response:
        return await complete(request, ENDPOINTS["/v1/completions"])

    @app.post(
        "/v1/responses",
        summary="OpenAI's newer form, as far as text goes",
        openapi_extra=described("/v1/responses"),
    )
    async def responses(request: Request) -> Response:
        return await complete(request, ENDPOINTS["/v1/responses"])

    @app.post(
        IMAGES,
        summary="pictures of a class, of a model that draws",
        openapi_extra=described(IMAGES),
    )
    async def images(request: Request) -> Response:
        return await complete(request, ENDPOINTS[IMAGES])

    @app.get("/v1/responses/{name}", summary="a response that was stored")
    async def stored_response(request: Request, name: str) -> Response:
        """Give a stored response back.

        Args:
            request: The request.
            name: Id of the response.

        Returns:
            The response as it was sent.
        """
        mine = ClientResponses(store, client_of(request.scope).credential)
        # The bytes as they were kept: there is no need to read and write the JSON again.
        return Response(mine.stored_body(name), media_type="application/json")

    @app.delete("/v1/responses/{name}", summary="forget a response that was stored")
    async def forgotten(request: Request, name: str) -> dict[str, Any]:
        """Forget a stored response.

        Args:
            request: The request.
            name: Id of the response.

        Returns:
            What OpenAI's server says then.
        """
        ClientResponses(store, client_of(request.scope).credential).forget_response(name)
        return {"id": name, "object": "response", "deleted": True}

    @app.post(
        "/v1/embeddings",
        summary="vectors of texts, read out of the model",
        openapi_extra=described("/v1/embeddings"),
    )
    async def embeddings(request: Request) -> Response:
        def read(body: RequestBody) -> tuple[ModelWorker, EmbeddingRequest]:
            worker = models.find_worker(body.take_field("model"))
            return worker, read_embeddings(body, worker.model, limits)

        worker, asked = await reading(read, request)
        # However many texts there are, their vectors count as one answer.
        count_answers(request.scope, 1)
        record = record_of(request.scope)
        record.model = worker.name
        record.counts = ResponseCounts(prompt=asked.tokens)
        # Reads share passes with the answers that are being written.
        work = worker.run_reading(
            embedding_vectors(worker.model, asked.texts, asked.how), client_of(request.scope)
        )
        rows = await unless_left(request, work)
        return await json_response(writers, lambda: asked.answer_body(worker.name, rows), {})

    def card(name: str) -> dict[str, Any]:
        known = models.workers.get(name)
        if known is None:
            about = {}
        else:
            about = {"max_model_len": known.model.network.context}
        return {
            "id": name,
            "object": "model",
            "created": models.began,
            "owned_by": "polydec",
            **about,
        }

    @app.get("/v1/models", summary="what is served")
    async def listed() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in models.loaders]}

    @app.get("/v1/models/{name:path}", summary="one of them")
    async def served(name: str) -> dict[str, Any]:
        if name not in models.loaders:
            # A name that is not served gets the refusal that names a near one.
            models.find_worker(name)  # raises
        return card(name)

    @app.post(
        "/tokenize", summary="a text or messages to token ids", openapi_extra=described("/tokenize")
    )
    async def tokenize(request: Request) -> Response:
        return await reading(lambda body: _tokenized(body, models, limits), request)

    @app.post("/detokenize", summary="token ids to a text", openapi_extra=described("/detokenize"))
    async def detokenize(request: Request) -> Response:
        return await reading(lambda body: _detokenized(body, models, limits), request)

    @app.get("/tokenizer_info", summary="special tokens and the chat template")
    async def tokenizer(model: str | None = None) -> dict[str, Any]:
        text = models.find_worker(model).model.checkpoint.text
        return {
            "bos_token": None,
            "eos_token": None,
            **text.names,
            "chat_template": None if text.template is None else text.template.source,
        }

    @app.get(
        "/methods", summary="every method, its options, and why a model cannot be decoded by it"
    )
    async def methods(model: str | None = None) -> Response:
        kit = models.find_worker(model).model.recipe_kit()

        def listed() -> dict[str, Any]:
            data = [_described(n, kit) for n in sorted(registry.recipe_modules())]
            return {"object": "list", "default": method, "data": data}

        return await json_response(writers, listed, {})

    @app.get(
        "/steerings", summary="every way to steer, its options, and why a model cannot have it"
    )
    async def steerings(model: str | None = None) -> Response:
        kit = models.find_worker(model).model.recipe_kit()

        def listed() -> dict[str, Any]:
            data = [_steering_described(n, kit) for n in sorted(steer.steering_modules())]
            return {"object": "list", "data": data}

        return await json_response(writers, listed, {})

    @app.get("/sampling", summary="a JSON schema of the sampling fields")
    async def sampling(model: str | None = None) -> dict[str, Any]:
        own = models.find_worker(model).model.sampling_with()
        return {
            **_schema(
                {
                    name: {**o.json_schema(), "default": getattr(own, name)}
                    for name, o in sampling_fields().items()
                }
            )
        }

    @app.get("/health", summary="200 where all models are ready")
    async def health() -> JSONResponse:
        states = models.states
        if models.draining:
            state = "stopping"
        else:
            state = next((s for s in ("failed", "loading") if s in states.values()), "ready")
        return JSONResponse({"status": state, "models": states}, 200 if state == "ready" else 503)

    @app.get("/metrics", summary="for Prometheus")
    async def measured() -> Response:
        return Response(
            metrics.prometheus_text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @app.get("/", summary="the page")
    async def page() -> HTMLResponse:
        return HTMLResponse(
            files("polydec.serve").joinpath("page.html").read_text("utf-8"), headers=PAGE
        )

    @app.get("/docs", summary="this description, for people")
    async def docs() -> HTMLResponse:
        return HTMLResponse(described_page(app.openapi()), headers=PAGE)

    return app


def _tokenized(body: RequestBody, models: ServedModels, limits: RequestLimits) -> Response:
    """The token ids of a text or of messages."""
    model = models.find_worker(body.take_field("model")).model
    most = limits.prompt
    if "prompt" in body.fields:
        special = body.take_field("add_special_tokens", True)
    else:
        special = True
    prompt = body.take_field("prompt")
    messages = body.take_field("messages")
    if messages is None:
        read = None
        ending = prompt_ending.OPENED
    else:
        read = read_messages(body, messages)
        ending = chat_ending(body)
    body.refuse_rest()
    if (prompt is None) == (messages is None):
        raise RefusalError("give one of prompt and messages", param="prompt")
    if read is not None:
        ids = model.encode_prompt(read, most=most, ending=ending)
    elif not isinstance(prompt, str):
        raise RefusalError(f"prompt is {short_repr(prompt)}: it must be a text", param="prompt")
    # A look at the length first: encoding a very long text takes long.
    elif model.checkpoint.text.exceeds_limit(whole_text(prompt, "prompt"), most):
        raise RefusalError(
            f"prompt has more than {most} tokens: give less at a time", param="prompt"
        )
    else:
        ids = model.checkpoint.text.encode(prompt, bool(special))
    if len(ids) > most:
        if prompt is None:
            name = "messages"
        else:
            name = "prompt"
        raise RefusalError(
            f"{name} has {len(ids)} tokens: at most {most} are told at a time", param=name
        )
    return JSONResponse(
        {"count": len(ids), "max_model_len": model.network.context, "tokens": list(ids)}
    )


def _detokenized(body: RequestBody, models: ServedModels, limits: RequestLimits) -> Response:
    """The text of token ids."""
    model = models.find_worker(body.take_field("model")).model
    tokens = body.take_field("tokens")
    body.refuse_rest()
    if not isinstance(tokens, list):
        raise RefusalError(
            f"tokens is {short_repr(tokens)}: it must be a list of token ids", param="tokens"
        )
    if tokens:
        ids = model.encode_prompt(tokens, who="tokens", most=limits.prompt)
    else:
        ids = ()
    return JSONResponse({"prompt": model.checkpoint.text.decode(ids)})


def _told(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names fields which were left out."""
    if not ignored:
        return {}
    # A header is ASCII and of bounded size, whatever names a client makes up.
    names = [quote(name[:60], safe=" !#$&'()*+-./:<=>?@[]^_`{|}~") for name in ignored[:32]]
    if len(ignored) > 32:
        more = [f"and {len(ignored) - 32} more"]
    else:
        more = []
    return {IGNORED: ", ".join(names + more)}


def _described(name: str, kit: Any) -> dict[str, Any]:
    """A method: its card, the JSON schema of its options, and why this model cannot be decoded by it (none: it can)."""
    about = registry.describe_method(name)
    try:
        card = registry.get_recipe_module(name).CARD
        # An image belongs to a request, not to the model.
        needs = tuple(need for need in card.needs if need not in (IMAGE, PROMPT_IMAGE))
        registry.check_method_needs(replace(card, needs=needs), kit)
        why = None
    except PolydecError as error:
        why = str(error)
    return {
        **about,
        "schema": _schema({k: o["schema"] for k, o in about["options"].items()}),
        "unavailable": why,
    }


def _steering_described(name: str, kit: Any) -> dict[str, Any]:
    """A way to steer: its card, the JSON schema of its options, whether it reads a negative prompt, and why this model
    cannot have it (none: it can)."""
    about = steer.describe_steering(name)
    card = steer.get_steering_module(name).CARD
    needs = card.needs
    try:
        # A model of another family shows nothing of what the needs ask for.
        if card.family not in ("any", kit.family.name):
            raise RequestError(f"steering {name} does not bend {kit.family.called} model")
        for need in needs:
            # Prompts belong to a request, not to the model.
            if need not in (SECOND_PROMPT, OWN_PROMPT, PLAIN_PROMPT):
                need.check_kit(kit, f"steering {name}")
        why = None
    except PolydecError as error:
        why = str(error)
    return {
        **about,
        "schema": _schema({k: o["schema"] for k, o in about["options"].items()}),
        "reads_negative_prompt": SECOND_PROMPT in needs,
        "unavailable": why,
    }


def _schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
