"""Random requests over HTTP: right ones, broken ones and hostile ones, for
`polydec.lab.fuzz.attack`.

What is sent is bytes, so that heads may be broken as well; how it is sent (in parts, slowly, left
half way) stands beside them.
"""

from __future__ import annotations

import json
import random
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from polydec.lab.fuzz.fuzz import NUMBERS, TEXTS, mutate_bytes
from polydec.lab.fuzz.fuzz_constraints import KINDS, VALUES

ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"),
    *(
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/tiny",
        "/v1/models/\u00e9",
        "/tokenizer_info",
        "/methods",
        "/steerings",
    ),
    *("/sampling", "/health", "/metrics", "/docs", "/openapi.json", "/", "/nowhere", "//", "/../x"),
)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "x")
RIGHT: Mapping[str, Any] = {"prompt": "The old river", "max_tokens": 4, "temperature": 0, "seed": 1}
"""A request that is answered by the same text each time."""


@dataclass(frozen=True)
class ClientInput:
    """What a client does.

    Attributes:
        kind: Kind of input.
        parts: What it sends, one after the other.
        pause: Seconds between two parts.
        whole: Whether that is a complete request, which must be answered.
        stays: Bytes of the answer after which the client leaves. None: it reads all.
        abrupt: Whether it leaves by a reset.
        waits: Seconds that it waits for an answer.
    """

    kind: str
    parts: tuple[bytes, ...]
    pause: float = 0.0
    whole: bool = True
    stays: int | None = None
    abrupt: bool = False
    waits: float = 60.0

    @property
    def described(self) -> str:
        """All of it, as far as it is worth printing."""
        text = b" ".join(self.parts)
        return f"{text[:1500]!r}" + (f" … {len(text)} bytes" if len(text) > 1500 else "")


def http_request_bytes(path: str, body: bytes, method: str = "POST", more: str = "") -> bytes:
    """Write a request.

    Args:
        path: Path and query.
        body: Bytes of the body.
        method: HTTP method. Default POST.
        more: Further lines of the head, each with its line break.

    Returns:
        Bytes of the request.
    """
    # The bytes of UTF-8, one by one, so that a path may hold what no head should.
    target = path.encode().decode("latin-1")
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if body or method == "POST":
        size = f"Content-Length: {len(body)}\r\n"
    else:
        size = ""
    return (head + size + more + "\r\n").encode("latin-1") + body


def numbered_input(seed: int, number: int) -> ClientInput:
    """Draw the input of a number.

    Args:
        seed: Seed of the attack.
        number: Number of the input.

    Returns:
        The input, the same for the same two numbers.
    """
    r = random.Random(f"attack {seed} {number}")
    # Kinds that reach more code, or cost the server less, come more often.
    kind = r.choices(tuple(INPUTS), WEIGHTS)[0]
    return INPUTS[kind](r)


WARM_METHODS = ("plain", "auto", "draft-model", "prompt-lookup", "beam")
"""Those that inputs name: what they compute with is imported where one is first asked for."""
SMALL_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}}


def warm_up_inputs() -> list[ClientInput]:
    """A whole request of each kind: all that a server makes once is made after these."""
    chat = {"messages": [{"role": "user", "content": "The old river"}], "max_tokens": 2}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    # One for each kind of work that a server prepares on first use.
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", dict(RIGHT)),
        ("/v1/completions", {**RIGHT, "stream": True, "logprobs": 2, "echo": True}),
        ("/v1/completions", {**RIGHT, "best_of": 4, "n": 2, "polydec": True}),
        ("/v1/completions", {**RIGHT, "guided_regex": "[a-z]+", "prompt": "a" * 3000}),
        ("/v1/completions", {**RIGHT, "guided_grammar": 'start: "a" start | "b"'}),
        ("/v1/completions", {**RIGHT, "prompt": ["The old river"] * 32}),
        ("/v1/chat/completions", {**chat, "tools": [tool], "tool_choice": "required"}),
        ("/v1/chat/completions", {**chat, "response_format": {"type": "json_object"}}),
        ("/v1/responses", {"input": "The old river", "max_output_tokens": 2}),
        ("/tokenize", {"prompt": "The old river"}),
        ("/detokenize", {"tokens": [1, 2]}),
        ("/v1/embeddings", {"input": ["The old river"] * 8, "pool": "mean", "prepend_to": 1}),
        ("/v1/embeddings", {"input": "The old river", "encoding_format": "base64"}),
        *(("/v1/completions", {**RIGHT, "method": name}) for name in WARM_METHODS),
        ("/v1/completions", {**RIGHT, "temperature": 0.9, "n": 3, "finish": True}),
        ("/v1/completions", {**RIGHT, "guided_json": SMALL_SCHEMA, "finish": True}),
        ("/v1/completions", {**RIGHT, "guided_choice": ["a", "b"], "stream": True}),
        ("/v1/chat/completions", {**chat, "tools": [tool], "stream": True}),
        (
            "/v1/responses",
            {
                "input": "The old river",
                "max_output_tokens": 2,
                "text": {"format": {"type": "json_schema", "name": "x", "schema": SMALL_SCHEMA}},
            },
        ),
        ("/v1/completions", {**RIGHT, "units": "bytes", "covers": 8}),
        ("/v1/completions", {**RIGHT, "reuse": "edited", "reuse_key": "a"}),
        ("/v1/completions", {"prompt": "The old river", "infill": "a[[2]]b", "max_tokens": None}),
        ("/v1/completions", {"prompt": [1, *_vectors(192, 4), 2], "max_tokens": 2}),
    ]
    out = [
        ClientInput("warm", (http_request_bytes(path, json.dumps(body).encode()),))
        for path, body in bodies
    ]
    gets = ("/methods", "/metrics", "/docs", "/openapi.json", "/", "/sampling", "/tokenizer_info")
    out += [ClientInput("warm", (http_request_bytes(path, b"", "GET"),)) for path in gets]
    return out


# ---- requests that may be right ----


def reference_input() -> ClientInput:
    """The request that is answered by the same text each time."""
    return ClientInput(
        "right", (http_request_bytes("/v1/completions", json.dumps(RIGHT).encode()),)
    )


def _good(r: random.Random) -> tuple[str, dict[str, Any]]:
    """A request that would be answered."""
    text = r.choice(("The old river", "a", "é🙂", "Once upon a time " * 20))
    more: dict[str, Any] = {"max_tokens": r.choice((1, 2, 3)), "seed": r.randrange(5)}
    if r.random() < 0.3:
        more["stream"] = True
    if r.random() < 0.3:
        more |= {"temperature": 0.9, "n": r.choice((1, 2, 3))}
    if r.random() < 0.2:
        more["method"] = r.choice((*WARM_METHODS, "x"))
    # Completions and chats come most often; cases 8 to 10 are embeddings and the package's own fields.
    match r.randrange(11):
        case 8:
            return "/v1/embeddings", _embedding(r, text)
        case 9 | 10:
            return r.choice((_reused, _in_bytes, _with_vectors, _with_source, _with_gaps))(
                r, text, more
            )
        case 0 | 1 | 2:
            return "/v1/completions", {"prompt": text, **more, "logprobs": r.choice((None, 2))}
        case 3 | 4:
            messages = [{"role": "user", "content": text}]
            return "/v1/chat/completions", {"messages": messages, **more}
        case 5:
            # The Responses API calls its limit otherwise, and has one answer.
            del more["max_tokens"]
            more.pop("n", None)
            return "/v1/responses", {"input": text, "max_output_tokens": 2, **more}
        case 6:
            return "/tokenize", {"prompt": text}
        case _:
            return "/detokenize", {"tokens": [r.randrange(300) for _ in range(5)]}


def _embedding(r: random.Random, text: str) -> dict[str, Any]:
    """A request for vectors of one text, several, or token ids."""
    whole: dict[str, Any] = {"input": r.choice((text, [text] * 3, [1, 2, 3], [[1], [2, 3]]))}
    fields = {
        "encoding_format": r.choice(("float", "base64")),
        "dimensions": r.choice((1, 8, 192)),
        "pool": r.choice(("last", "mean")),
        "layer": r.choice((1, 2, 3)),
        "normalised": r.choice((True, False)),
        "template": r.choice(("{text}", "about {text}:")),
        "prepend_to": r.choice((0, 1, 2)),
        "prepend_from": r.choice((0, 1)),
    }
    return whole | {name: fields[name] for name in r.sample(sorted(fields), r.randrange(4))}


Body = tuple[str, dict[str, Any]]


def _reused(r: random.Random, text: str, more: dict[str, Any]) -> Body:
    """A text that is edited from request to request, under one of a few names."""
    at = r.randrange(len(text) + 1)
    edited = text[:at] + r.choice(("", "x", " and a mill ")) + text[at:]
    key = r.choice(("a", "b", "c"))
    reuse = {"reuse": r.choice(("prefix", "edited")), "reuse_key": key}
    return "/v1/completions", {"prompt": edited or "a", **more, **reuse}


def _in_bytes(r: random.Random, text: str, more: dict[str, Any]) -> Body:
    """An answer that is written a byte at a time."""
    if r.random() < 0.5:
        covers = {"covers": r.choice((1, 2, 64))}
    else:
        covers = {}
    return "/v1/completions", {"prompt": text[:-1] or "a", **more, "units": "bytes", **covers}


def _vectors(width: int, count: int, stands_for: list[int] | None = None) -> list[Any]:
    """Vectors of a prompt, as they are sent: a safetensors file in base64."""
    shape = {"dtype": "F32", "shape": [count, width], "data_offsets": [0, 4 * count * width]}
    # A safetensors file written by hand: the size of the header, the header, the numbers.
    head = json.dumps({"v": shape}).encode()
    body = struct.pack(f"<{count * width}f", *(0.01 * (i % 7) for i in range(count * width)))
    text = b64encode(struct.pack("<Q", len(head)) + head + body).decode()
    return [{"vectors": text, "stands_for": stands_for}]


def _with_vectors(r: random.Random, text: str, more: dict[str, Any]) -> Body:
    """Vectors among token ids, of the model's width or of another one, whole or damaged."""
    width = r.choice((192, 192, 192, 1, 191, 4096))
    count = r.choice((1, 2, 9))
    entry = _vectors(width, count, r.choice((None, [1, 2], [-1], [1 << 40])))[0]
    # Damaged as text: base64, header or numbers may be wrong then.
    if r.random() < 0.4:
        entry["vectors"] = mutate_bytes(r, entry["vectors"].encode()).decode("latin-1")
    if r.random() < 0.2:
        entry[r.choice(("vectors", "stands_for", "x"))] = r.choice((*VALUES, *NUMBERS, *TEXTS))
    return "/v1/completions", {"prompt": [1, 2, entry, 3], **more}


def _with_source(r: random.Random, text: str, more: dict[str, Any]) -> Body:
    """A source, which only encoder-decoder models read: any other one says so."""
    source = r.choice((text, [1, 2, 3], [], "", *VALUES))
    return "/v1/completions", {"prompt": r.choice(("", "a")), "source": source, **more}


def _with_gaps(r: random.Random, text: str, more: dict[str, Any]) -> Body:
    """An answer with gaps, whole or damaged; models that fill none say so."""
    gaps = ("[[2]]", "[[1]] mill [[3]]", "[[999999]]" * 9, "[[2:[a-z]+]]", "[[" * 50, "[[0]]")
    infill = r.choice((text + r.choice(gaps), [1, None, 2], [None] * 9, [], [True, None], *VALUES))
    if r.random() < 0.7:
        del more["max_tokens"]
    return "/v1/completions", {"prompt": text, **more, "infill": infill}


def _fields(r: random.Random) -> ClientInput:
    """Fields of wrong types, out of range, unknown, missing or given twice."""
    path, body = _good(r)
    for _ in range(r.choice((0, 1, 1, 2, 3))):
        # A field that the request has gets a wrong value, or one that it lacks is added.
        name = r.choice((*body, *NAMES))
        body[name] = r.choice((*VALUES, *NUMBERS, *TEXTS, [[]], {"a": {}}, [None], [-1], [1, 2]))
    if r.random() < 0.1:
        body.pop(r.choice(tuple(body)))
    text = json.dumps(body).encode()
    if r.random() < 0.05:
        # A name that stands twice: JSON leaves open which one counts.
        text = text[:-1] + b', "prompt": 1, "prompt": 2}'
    return ClientInput("fields", (http_request_bytes(path, text),))


NAMES = (
    *("stream_options", "logprobs", "top_logprobs", "options", "logit_bias", "top_p", "top_k"),
    *(
        "echo",
        "best_of",
        "nonsense",
        "order",
        "stop",
        "stop_token_ids",
        "min_tokens",
        "polydec",
        "model",
    ),
    *(
        "tools",
        "tool_choice",
        "suffix",
        "infill",
        "n",
        "seed",
        "method",
        "steer",
        "steer_options",
        "finish",
    ),
    *("cache", "cache_options", "reuse", "reuse_key", "source", "units", "covers", "vectors"),
    *("dimensions", "encoding_format", "pool", "layer", "template", "prepend_to", "prepend_from"),
    *("normalised", "stands_for", "user"),
    *(
        "negative_prompt",
        "prompt_logprobs",
        "allowed_token_ids",
        "bad_token_ids",
        "text",
        "include",
    ),
    *("instructions", "input", "messages", "prompt", "tokens", "reasoning", "reasoning_effort"),
    *("chat_template_kwargs", "add_special_tokens", "ignore_eos", "repetition_penalty", "\ud800"),
    *("reasoning_format", "reasoning_budget", "thinking_token_budget", "include_reasoning"),
    *("continue_final_message", "add_generation_prompt", "n_predict", "verbosity"),
)


def _constraint(r: random.Random) -> ClientInput:
    kind = r.choice(tuple(KINDS))
    value, (path, body) = KINDS[kind](r), _good(r)
    if path in ("/tokenize", "/detokenize", "/v1/embeddings"):
        path = "/v1/completions"
        body = {"prompt": "The old", "max_tokens": 2}
    # Each kind of constraint has several names, after the servers that they come from.
    form = r.randrange(4)
    if path == "/v1/responses":
        body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": value}}
    elif kind == "json_schema" and form == 0:
        schema = {"name": "x", "schema": value}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind == "grammar" and form == 0:
        body["grammar"] = value.replace(": ", " ::= ")
    elif kind == "triplets":
        body["constraint"] = {kind: value}
    elif kind != "span_of" and form == 1:
        name = {"json_schema": "json"}.get(kind, kind)
        body["structured_outputs"] = {name: value}
    else:
        names = {"json_schema": "guided_json", "span_of": "span_of"}
        body[names.get(kind, f"guided_{kind}")] = value
    if r.random() < 0.2:
        body["finish"] = True
    return ClientInput("constraint", (http_request_bytes(path, json.dumps(body).encode()),))


def _tools(r: random.Random) -> ClientInput:
    flat = r.random() < 0.3
    tools = list[Any]()
    for _ in range(r.randint(0, 3)):
        function: dict[str, Any] = {
            "name": r.choice(("f", "g", "h", "", "a b", "é", "\ud800", 5, "a" * 70)),
            "parameters": KINDS["json_schema"](r) if r.random() < 0.7 else r.choice(VALUES),
            "strict": r.choice((True, True, False, None, "x")),
        }
        if r.random() < 0.3:
            function[r.choice(("description", "x", "name"))] = r.choice((*VALUES, *TEXTS))
        tools.append({"type": "function", **(function if flat else {"function": function})})
    choice = r.choice(
        (
            *("auto", "required", "none", "x", None, 5),
            {"type": "function", "function": {"name": r.choice(("f", "g", 5))}},
            {"type": "function", "name": "f"},
        )
    )
    more = {"tools": tools, "tool_choice": choice, "stream": r.random() < 0.4}
    if r.random() < 0.2:
        more["parallel_tool_calls"] = r.choice((True, False, 1))
    messages: list[Any] = [{"role": "user", "content": "The old river"}]
    if r.random() < 0.2:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": r.choice(([call], [], [5], 5))},
            {"role": "tool", "tool_call_id": r.choice(("1", 1, None)), "content": "x"},
        ]
    if flat:
        path = "/v1/responses"
        body = {"input": messages, "max_output_tokens": 3, **more}
    else:
        path = "/v1/chat/completions"
        body = {"messages": messages, "max_tokens": 3, **more}
    return ClientInput("tools", (http_request_bytes(path, json.dumps(body).encode()),))


# ---- bodies ----


def _broken(r: random.Random) -> ClientInput:
    """JSON with some bytes changed."""
    path, body = _good(r)
    return ClientInput(
        "broken", (http_request_bytes(path, mutate_bytes(r, json.dumps(body).encode())),)
    )


def _deep(r: random.Random) -> ClientInput:
    n = r.choice((50, 900, 20_000, 100_000))
    opening, closing = r.choice(((b"[", b"]"), (b'{"a":', b"}")))
    # Brackets inside one another, closed or not: parsers that recurse fail here.
    inner = opening * n + b"1" + closing * (n if r.random() < 0.7 else n // 2)
    name = r.choice((b"prompt", b"messages", b"tools", b"metadata", b"stop", b"guided_json", b""))
    path = r.choice(("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/responses"))
    if name:
        text = b'{"' + name + b'": ' + inner + b"}"
    else:
        text = inner
    return ClientInput("deep", (http_request_bytes(path, text),))


def _json(path: str, text: bytes) -> Callable[[], bytes]:
    return cache(lambda: http_request_bytes(path, text))


def _made(path: str, body: Callable[[], Any]) -> Callable[[], bytes]:
    return cache(lambda: http_request_bytes(path, json.dumps(body(), ensure_ascii=False).encode()))


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _functions(count: int) -> list[Any]:
    about = {"description": "a" * 9000}
    return [{"type": "function", "function": {"name": f"f{i}", **about}} for i in range(count)]


_ONE = "/v1/completions"
_CHAT = "/v1/chat/completions"
LARGE: Mapping[str, Callable[[], bytes]] = {
    "a": _made(_ONE, lambda: {"prompt": "a" * 4_000_000}),
    "spaces": _made(_ONE, lambda: {"prompt": " " * 4_000_000, "echo": True, "max_tokens": 0}),
    "words": _made(_ONE, lambda: {"prompt": "ab c " * 800_000, "echo": True, "logprobs": 1}),
    "chat": _made(_CHAT, lambda: {"messages": _user("é" * 2_000_000)}),
    "messages": _made(_CHAT, lambda: {"messages": _user("a") * 20_000}),
    "tokenize": _made("/tokenize", lambda: {"prompt": "ab c " * 800_000}),
    "detokenize": _made("/detokenize", lambda: {"tokens": [5] * 400_000}),
    "input": _made("/v1/responses", lambda: {"input": "The old river " * 250_000}),
    "negative": _made(_ONE, lambda: {"prompt": "x", "negative_prompt": "a" * 4_000_000, "steer": "cfg"}),
    "bias": _made(_ONE, lambda: {"prompt": "x", "logit_bias": {str(i): 1 for i in range(300_000)}}),
    "right bias": _made(_ONE, lambda: {**RIGHT, "logit_bias": {str(i): 1 for i in range(1000)}}),
    "banned": _made(_ONE, lambda: {"prompt": "x", "bad_token_ids": list(range(400_000))}),
    "prompts": _made(_ONE, lambda: {"prompt": [[5] * 900] * 1024}),
    "echoes": _made(_ONE, lambda: {"prompt": [[5] * 400] * 1024, "echo": True, "max_tokens": 0}),
    "texts": _made(_ONE, lambda: {"prompt": ["The old river " * 200] * 1024}),
    "listed": _made(_ONE, lambda: {"prompt": [list(range(5, 1005))] * 96, "max_tokens": 1, "prompt_logprobs": 64}),
    "copies": _made(_ONE, lambda: {**RIGHT, "prompt": [5] * 400, "n": 50, "prompt_logprobs": 64}),
    "alternatives": _made(_ONE, lambda: {"prompt": [[5] * 100] * 8, "echo": True, "logprobs": 64, "stream": True}),
    "many": _made(_CHAT, lambda: {"messages": _user("x"), "n": 32, "max_tokens": 8, "logprobs": True, "top_logprobs": 64}),
    "embedded texts": _made("/v1/embeddings", lambda: {"input": ["x"] * 2048}),
    "embedded": _made("/v1/embeddings", lambda: {"input": ["The old river " * 200] * 1024}),
    "embedded ids": _made("/v1/embeddings", lambda: {"input": [[5] * 900] * 1024, "pool": "mean"}),
    "embedded text": _made("/v1/embeddings", lambda: {"input": "a" * 4_000_000}),
    "template": _made("/v1/embeddings", lambda: {"input": "a", "template": "{text}" + "a" * 3_000_000}),
    "vectors": _made(_ONE, lambda: {"prompt": _vectors(192, 4000), "max_tokens": 1}),
    "narrow vectors": _made(_ONE, lambda: {"prompt": _vectors(1, 400_000), "max_tokens": 1}),
    "vector entries": _made(_ONE, lambda: {"prompt": _vectors(192, 1) * 3000, "max_tokens": 1}),
    "bytes": _made(_ONE, lambda: {"prompt": "ab c " * 9000, "units": "bytes", "max_tokens": 1}),
    "covers": _made(_ONE, lambda: {"prompt": "a" * 900, "units": "bytes", "covers": 64, "max_tokens": 9}),
    "reuse keys": _made(_ONE, lambda: {**RIGHT, "reuse": "prefix", "reuse_key": "k" * 1_000_000}),
    "source": _made(_ONE, lambda: {"prompt": "", "source": "a" * 4_000_000}),
    "ids": _made(_ONE, lambda: {"prompt": [5] * 500_000}),
    "stops": _made(_ONE, lambda: {"prompt": "x", "stop": ["abc"] * 100_000}),
    "stop": _made(_ONE, lambda: {"prompt": "x", "stop": "a" * 4_000_000}),
    "choice": _made(_ONE, lambda: {"prompt": "x", "max_tokens": 2, "guided_choice": ["a" * 200_000]}),
    "long choice": _made(_ONE, lambda: {"prompt": "x", "guided_choice": ["a" * 1_000_000]}),
    "choices": _made(_ONE, lambda: {**RIGHT, "guided_choice": [f"the river {i} " for i in range(9000)]}),
    "span": _made(_ONE, lambda: {"prompt": "x", "max_tokens": 2, "span_of": "The old river ran " * 50_000}),
    "regex": _made(_ONE, lambda: {"prompt": "x", "guided_regex": "(a|b)?" * 600_000}),
    "grammar": _made(_ONE, lambda: {"prompt": "x", "guided_grammar": "start: " + "a | " * 900_000}),
    "gbnf": _made(_ONE, lambda: {"prompt": "x", "grammar": "root ::= " + '"a" | ' * 500_000}),
    "enum": _made(_ONE, lambda: {"prompt": "x", "guided_json": {"enum": list(range(300_000))}}),
    "properties": _made(_ONE, lambda: {"prompt": "x", "guided_json": {"properties": {f"p{i}": {} for i in range(30_000)}}}),
    "tools": _made(_CHAT, lambda: {"messages": _user("x"), "max_tokens": 2, "tools": _functions(256)}),
    "metadata": _made(_ONE, lambda: {**RIGHT, "metadata": {"a": "b" * 4_000_000}}),
    "kwargs": _made(_CHAT, lambda: {"messages": _user("x"), "chat_template_kwargs": {f"k{i}": 1 for i in range(90_000)}}),
    "options": _made(_ONE, lambda: {"prompt": "x", "options": {"depth": "9" * 4_000_000}}),
    "number": _json(_ONE, b'{"prompt": "x", "seed": ' + b"9" * 3_000_000 + b"}"),
    "decimal": _json(_ONE, b'{"prompt": "x", "temperature": 0.' + b"1" * 3_000_000 + b"}"),
    "numbers": _json(_ONE, b'{"prompt": [' + b"1," * 1_900_000 + b"1]}"),
    "lists": _json(_ONE, b'{"prompt": "x", "stop": [' + b"[]," * 1_000_000 + b"[]]}"),
    "quotes": _json(_ONE, b'"' * 4_000_000),
    "escapes": _json(_ONE, b'{"prompt": "' + b"\\u0061" * 600_000 + b'"}'),
    "surrogates": _json(_ONE, b'{"prompt": "' + b"\\ud83d" * 600_000 + b'"}'),
    "zeros": _json(_ONE, b"\x00" * 4_000_000),
    "name": _json(_ONE, b'{"' + b"a" * 4_000_000 + b'": 1}'),
    "brackets": _json(_CHAT, b"[" * 4_000_000),
    "too large": _json(_ONE, b'{"prompt": "' + b"a" * 9_000_000 + b'"}'),
    "chunks": cache(lambda: _chunked(b'{"prompt": "' + b"a" * 100_000 + b'"}', 1)),
}  # fmt: skip
"""Requests that are expensive to read, or would be."""


def _chunked(body: bytes, size: int) -> bytes:
    # Chunks in place of a length: the server cannot know how much is to come.
    head = http_request_bytes("/v1/completions", b"", "POST", "Transfer-Encoding: chunked\r\n")
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    return (
        head.replace(b"Content-Length: 0\r\n", b"")
        + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces)
        + b"0\r\n\r\n"
    )


def _large(r: random.Random) -> ClientInput:
    name = r.choice(tuple(LARGE))
    return ClientInput(f"large {name}", (LARGE[name](),))


def _unfinished(r: random.Random) -> ClientInput:
    """The client leaves before all of its request is there."""
    path, body = _good(r)
    whole = http_request_bytes(path, json.dumps(body).encode())
    cut = r.randrange(1, len(whole))
    return ClientInput("unfinished", (whole[:cut],), whole=False, stays=0, abrupt=r.random() < 0.5)


def _slow(r: random.Random) -> ClientInput:
    """A whole request that comes bit by bit."""
    path, body = _good(r)
    whole = http_request_bytes(path, json.dumps(body).encode())
    # Cut at random places, also inside of the head.
    at = sorted(r.randrange(len(whole)) for _ in range(r.randint(1, 5)))
    parts = tuple(whole[a:b] for a, b in zip([0, *at], [*at, len(whole)]))
    return ClientInput("slow", parts, pause=r.choice((0.0, 0.01, 0.1)))


def _leaves(r: random.Random) -> ClientInput:
    """A client that leaves while it is answered."""
    # Long answers, so that the client leaves before the end.
    body = {**RIGHT, "max_tokens": r.choice((5, 60)), "ignore_eos": True, "n": r.choice((1, 2))}
    body |= {"stream": r.random() < 0.8, "temperature": 0.9}
    stays = r.choice((0, 1, 200, 600, 2000))
    abrupt = r.random() < 0.5
    parts = (http_request_bytes("/v1/completions", json.dumps(body).encode()),)
    return ClientInput("leaves", parts, whole=False, stays=stays, abrupt=abrupt)


# ---- heads ----


def _routes(r: random.Random) -> ClientInput:
    method = r.choice(METHODS)
    path = r.choice(ROUTES)
    if r.random() < 0.3:
        path += r.choice(("?model=x", "?model=tiny", "?" + "a" * 3000, "?%00", "?model=%ff", "/"))
    if r.random() < 0.5:
        body = b""
    else:
        body = json.dumps(_good(r)[1]).encode()
    return ClientInput(
        "routes",
        (http_request_bytes(path, body, method),),
        whole=method != "CONNECT",
        waits=60.0 if method != "CONNECT" else 1.0,
    )


_LINES = (
    *("Expect: 100-continue", "Connection: close", "Connection: upgrade\r\nUpgrade: websocket"),
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: x", "Content-Length: 1" + "0" * 30),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Host: localhost", "Host: example.org"),
    *("X: " + "a" * 9000, "X: " + "a" * 40_000, "\x00: 1", ": 1", "X", " X: 1", "X: \x80\xff", "X: \x00"),
    *("Authorization: Bearer x", "Authorization: " + "x" * 5000, "Cookie: " + "a=b;" * 900),
    *("Content-Type: text/plain", "Content-Encoding: gzip", "Origin: http://example.org", "Range: bytes=0-1"),
)  # fmt: skip


def _heads(r: random.Random) -> ClientInput:
    """Lines of a head that are odd, too long, too many or given twice, and what is no HTTP at all."""
    body = json.dumps(RIGHT).encode()
    good = http_request_bytes("/v1/completions", body)
    match r.randrange(8):
        case 0 | 1:
            more = "".join(f"{r.choice(_LINES)}\r\n" for _ in range(r.randint(1, 3)))
            request_bytes = http_request_bytes("/v1/completions", body, "POST", more)
        case 2:
            request_bytes = mutate_bytes(r, good[: -len(body)]) + body
        case 3:
            n = r.choice((10, 100, 2000, 30_000))
            request_bytes = http_request_bytes(
                "/health", b"", "GET", "".join(f"x{i}: 1\r\n" for i in range(n))
            )
        case 4:
            request_bytes = (
                b"GET /" + b"a" * r.choice((1000, 15_000, 70_000, 1_000_000)) + b" HTTP/1.1\r\n\r\n"
            )
        case 5:
            request_bytes = _chunked(body, r.choice((1, 7, 1000)))
            if r.random() >= 0.5:
                request_bytes = mutate_bytes(r, request_bytes)
        case 6:
            request_bytes = (
                http_request_bytes("/health", b"", "GET") * r.choice((2, 30, 1000)) + good
            )
        case _:
            request_bytes = r.choice(
                (
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
                    b"GET / HTTP/1.0\r\n\r\n",
                    b"GET / HTTP/9.9\r\n\r\n",
                    b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                    b"\r\n" * 1000,
                    bytes(r.randrange(256) for _ in range(200)),
                )
            )
    return ClientInput("heads", (request_bytes,), whole=False, waits=1.0)


INPUTS: Mapping[str, Callable[[random.Random], ClientInput]] = {
    "constraint": _constraint,
    "tools": _tools,
    "fields": _fields,
    "broken": _broken,
    "deep": _deep,
    "large": _large,
    "unfinished": _unfinished,
    "slow": _slow,
    "leaves": _leaves,
    "routes": _routes,
    "heads": _heads,
    "right": lambda r: reference_input(),
}
WEIGHTS = (25, 8, 20, 12, 2, 1, 6, 2, 4, 8, 8, 4)
