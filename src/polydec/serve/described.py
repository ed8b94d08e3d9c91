"""What the server takes, as OpenAPI and as a page that needs nothing from anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from polydec.base.options import Option
from polydec.base.page_templates import render_page_template
from polydec.laws.shapers.sampling import all_sampling_fields as sampling_fields
from polydec.request.fields import OWN, ask_options
from polydec.request.reading import embedding_options as readings
from polydec.serve.body import ASKED
from polydec.serve.constrained import FIELDS as CONSTRAINTS
from polydec.serve.images import IMAGES
from polydec.serve.reasoning import BUDGETS, FORMATS
from polydec.serve.shapes import USUAL
from polydec.serve.template_fields import EFFORTS

Schema = dict[str, Any]


def _of(kind: str, about: str, **more: Any) -> Schema:
    return {"type": kind, "description": about, **more}


def _as_here(option: Option, *, own: bool = False, **more: Any) -> Schema:
    """The schema of a request's field as it is over HTTP, where null means that it was not given.

    With `own`, what stands for null is the server's or the checkpoint's own value, so no default is
    said.
    """
    # The form without None: over HTTP a field is left out, or null, in its place.
    schema = replace(option, type=option.form).json_schema()
    if own or option.default is None:
        del schema["default"]
    return {**schema, **more}


def _asked(field: str, about: str = "", **more: Any) -> Schema:
    """The schema of a field of an Ask; `about` is what is to be said of it here beside its own
    help.
    """
    option = ask_options()[field]
    if about:
        help_text = f"{option.help}; {about}"
    else:
        help_text = option.help
    return _as_here(replace(option, help=help_text), own=bool(about), **more)


_ABOUT = {
    "method": "left out: the server's; GET /methods lists them",
    "options": "GET /methods has their schema",
    "seed": "left out: drawn anew",
}
"""What is different here about a field of an Ask."""
_SHARED: Mapping[str, Schema] = MappingProxyType(
    {
        "model": _of("string", "the name of a model; left out: the first one"),
        "stream": _of("boolean", "send what is written at once"),
        **{name: _asked(field, _ABOUT.get(field, "")) for name, field in ASKED.items()},
        "polydec": {"description": 'true, or "steps": with tokens, drafts and figures'},
        **{name: {"description": about} for name, about in CONSTRAINTS.items()},
    }
)
_TEMPLATE: Mapping[str, Schema] = MappingProxyType(
    {
        "chat_template_kwargs": _asked("template"),
        "reasoning_effort": {
            "enum": list(EFFORTS),
            "description": "where the template knows of thinking",
        },
        "reasoning": _of("object", "OpenAI's newer form of it: an effort; max_tokens: a budget"),
        "reasoning_format": {
            "enum": list(FORMATS),
            "description": "none: what is thought stays in the text; else it is parted from it",
        },
        "include_reasoning": _of("boolean", "whether what is thought is sent"),
    }
)
_ENDING: Mapping[str, Schema] = MappingProxyType(
    {
        "add_generation_prompt": _of("boolean", "what opens the assistant's turn is added; true"),
        "continue_final_message": _of(
            "boolean", "go on with the assistant's final message; add_generation_prompt is false"
        ),
    }
)
_BUDGETS: Mapping[str, Schema] = MappingProxyType(
    {name: _asked("reasoning_budget", "-1: no bound", minimum=-1) for name in BUDGETS}
)
_STREAM: Schema = _of("object", "include_usage: counts at the end of a stream")
_TOOLS: Mapping[str, Schema] = MappingProxyType(
    {
        "tools": _asked("tools", type="array", items={"type": "object"}),
        "tool_choice": {"description": "whether it may, or must"},
        "parallel_tool_calls": _of("boolean", "whether several at a time"),
    }
)
_LENGTH: Schema = _asked("max_tokens", "left out: what the context and the server leave")
_BESIDE: Schema = _asked("logprobs")
_PROMPTED: Schema = _asked("prompt_logprobs")
_OWN: Mapping[str, tuple[tuple[str, ...], Mapping[str, Schema]]] = MappingProxyType(
    {
        "/v1/chat/completions": (
            ("messages",),
            {
                "messages": _of("array", "roles and contents", items={"type": "object"}),
                "max_completion_tokens": _LENGTH,
                "max_tokens": _LENGTH,
                "logprobs": _of("boolean", "log-probabilities of the model"),
                "top_logprobs": _BESIDE,
                "stream_options": _STREAM,
                "prompt_logprobs": _PROMPTED,
                **_TOOLS,
                **_TEMPLATE,
                **_ENDING,
                **_BUDGETS,
            },
        ),
        "/v1/completions": (
            ("prompt",),
            {
                "prompt": {"description": "a text or token ids, or several of either"},
                "max_tokens": _asked("max_tokens", "0 only with echo", minimum=0, default=USUAL),
                "echo": _of("boolean", "the prompt in front of the answer"),
                "best_of": _asked("best_of", "not with stream"),
                "infill": _asked("infill", "without patterns, and without max_tokens"),
                "logprobs": _BESIDE,
                "stream_options": _STREAM,
                "prompt_logprobs": _PROMPTED,
                **_BUDGETS,
            },
        ),
        "/v1/responses": (
            ("input",),
            {
                "input": {"description": "a text, or messages"},
                "instructions": _of("string", "what the system says"),
                "max_output_tokens": _LENGTH,
                "text": _of("object", "format: as response_format elsewhere"),
                "include": _of("array", "message.output_text.logprobs"),
                "top_logprobs": _BESIDE,
                "store": _of("boolean", "keep the response for later turns"),
                "previous_response_id": _of(
                    "string", "a stored response, behind which this goes on"
                ),
                **_TOOLS,
                **_TEMPLATE,
                **_BUDGETS,
            },
        ),
        IMAGES: (
            ("prompt",),
            {
                "prompt": _of("string", "the word of a class"),
                "size": _of("string", "auto, or the size that the model's pictures have"),
                "response_format": {"enum": ["b64_json"], "description": "how a picture is sent"},
                "output_format": {"enum": ["png"], "description": "of the file"},
                **{name: _of("string", "auto, or left out") for name in ("quality", "moderation")},
                "style": {"description": "left out"},
                "output_compression": {"enum": [100], "description": "of the file: the whole"},
                "partial_images": {"enum": [0], "description": "none come before the picture"},
            },
        ),
        "/v1/embeddings": (
            ("input",),
            {
                "model": _SHARED["model"],
                "input": {"description": "a text or token ids, or several of either"},
                "encoding_format": {"enum": ["float", "base64"], "description": "of a vector"},
                "dimensions": _of("integer", "numbers of a vector, from its beginning", minimum=1),
                **{name: _as_here(o) for name, o in readings().items()},
            },
        ),
        "/tokenize": (
            (),
            {
                "model": _SHARED["model"],
                "prompt": _of("string", "a text; or give messages"),
                "messages": _of("array", "a chat"),
                "add_special_tokens": _of("boolean", "the tokenizer's own marks"),
                **_ENDING,
            },
        ),
        "/detokenize": (
            ("tokens",),
            {
                "model": _SHARED["model"],
                "tokens": _of("array", "token ids", items={"type": "integer"}),
            },
        ),
    }
)


def request_body_fields(path: str) -> dict[str, Schema]:
    """Describe the fields of a request.

    Args:
        path: Path of the endpoint.

    Returns:
        A JSON schema of each field, by its name.
    """
    own = dict(_OWN[path][1])
    # Only the endpoints that decode take the shared fields and those of sampling.
    if not path.startswith("/v1/") or path == "/v1/embeddings":
        return own
    sampling = {k: _as_here(o, own=k in OWN) for k, o in sampling_fields().items()}
    shared = _SHARED
    # A picture is bound by its grid alone.
    if path == IMAGES:
        shared = {k: v for k, v in _SHARED.items() if k not in CONSTRAINTS}
    return {**own, **shared, **sampling}


def request_body_schema(path: str) -> dict[str, Any]:
    """Describe the body of a request for OpenAPI.

    Args:
        path: Path of the endpoint.

    Returns:
        What FastAPI merges into the endpoint's description.
    """
    schema = {
        "type": "object",
        "properties": request_body_fields(path),
        "required": list(_OWN[path][0]),
    }
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body}


def openapi_page_html(description: Mapping[str, Any]) -> str:
    """An OpenAPI description for people."""
    title = f"{description['info']['title']} {description['info']['version']}"
    return render_page_template(
        "serve/described.html.jinja", title=title, paths=description["paths"], form=_kind
    )


def _kind(field: Mapping[str, Any]) -> str:
    # A field that may be null as well: its first form says what it holds.
    if "anyOf" in field:
        form = field["anyOf"][0]
    else:
        form = field
    if "enum" in form:
        return " | ".join(map(str, form["enum"]))
    edges = [
        f"{word} {form[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if key in form
    ]
    return " ".join([form.get("type", "any"), *edges])
