"""The fields of a request. Each is taken by somebody; what nobody takes is refused, so that nothing is dropped in silence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from polydec.api import LM, Ask
from polydec.ask import limits as ask_limits
from polydec.constraints.tool_calls import Form
from polydec.edge import parse_object, whole_text
from polydec.options import shown
from polydec.serve.errors import Refusal
from polydec.shapers.sampling import fields as sampling_fields

IDLE = ("user", "metadata", "safety_identifier", "prompt_cache_key", "request_id", "service_tier")
"""Fields that clients send and that change nothing here, whatever they hold."""

ONLY: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "store": (False,),
        "best_of": (1,),
        "use_beam_search": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "detokenize": (True,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template_kwargs": ({},),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "background": (False,),
        "truncation": ("disabled",),
        "previous_response_id": (),
        "conversation": (),
        "reasoning": ({},),
        "suffix": ("",),
        "length_penalty": (1, 1.0),
        "priority": (0,),
        "truncate_prompt_tokens": (),
        "reasoning_effort": ("none",),
        "logit_processors": ([],),
        "bad_words": ([],),
    }
)
"""Fields of which only these values are honoured, none (null) besides: they say what the server does anyway."""


class Body:
    """What a client sent. null means that a field was not given, as clients write it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._left = {k: v for k, v in data.items() if v is not None}
        self.fields = frozenset(data)
        self._known = set(IDLE) | set(ONLY)
        for name in IDLE:
            self._left.pop(name, None)
        for name, legal in ONLY.items():
            if name in self._left and not any(_same(self._left[name], x) for x in legal):
                allowed = " or ".join(map(shown, legal)) or "none"
                raise Refusal(
                    f"{name} is {shown(self._left[name])}: this server takes only {allowed}",
                    param=name,
                )
            self._left.pop(name, None)

    def take(self, name: str, default: Any = None) -> Any:
        """A field as it stands."""
        self._known.add(name)
        return self._left.pop(name, default)

    def put(self, name: str, value: Any) -> None:
        """A field under the name that it has elsewhere. Raises Refusal where that is given as well."""
        if name in self._left:
            raise Refusal(f"{name} is given under two names: give one of them", param=name)
        self._left[name] = value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if type(value) is not bool:
            raise Refusal(f"{name} is {shown(value)}: it must be true or false", param=name)
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number, or None where it is not given."""
        value = self.take(name)
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise Refusal(
                f"{name} is {shown(value)}: it must be a whole number in {low} to {high}",
                param=name,
            )
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.take(name, {})
        if not isinstance(value, Mapping):
            raise Refusal(f"{name} is {shown(value)}: it must hold values by name", param=name)
        return value

    def end(self) -> None:
        """Refuse what nobody took."""
        for name in self._left:
            near = get_close_matches(name[:100], self._known, 3, 0.6)
            raise Refusal(
                f"field {shown(name)} is unknown"
                + (
                    f": did you mean {' or '.join(near)}?"
                    if near
                    else ": this server takes no field of that name"
                ),
                param=name[:100],
                code="unknown_field",
            )


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b  # true is not 1


def read_body(text: str | bytes) -> Body:
    """The fields in a JSON text. Raises ValueError where it is no object, Refusal where a field stands in it twice."""
    data = parse_object(text, "the body")
    twice = _twice(text)
    if twice is not None:
        raise Refusal(f"field {shown(twice)} is given twice: give it once", param=twice[:100])
    return Body(data)


def _twice(text: str | bytes) -> str | None:
    """A field of the body that is there twice, of which a reader would drop one."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict[str, Any]()
        for name, value in items:
            if name in out:
                found.append(name)
            out[name] = value
        return out

    json.loads(text, object_pairs_hook=pairs)
    return found[0] if found else None


@dataclass(frozen=True)
class Wanted:
    """What a request asks of the server beside its prompts.

    stream: send what is written at once; usage: with the counts at the end of a stream; details: with the field `polydec`
    (tokens, drafted or not, metrics); steps: what each round did and all passes as well; echoes: what stands before each
    answer, its prompt where that is asked for; silent: show nothing of the answer behind that; prompt_logprobs: alternatives to
    list beside each token of a prompt, in vLLM's field of that name (None: no such field); tools: names of those that answers
    may call; form: in which calls stand, where answers are bound to one; told: fields of the request that the response repeats.
    """

    asks: tuple[Ask, ...]
    stream: bool
    usage: bool
    details: bool
    echoes: tuple[str, ...] | None = None
    silent: bool = False
    steps: bool = False
    prompt_logprobs: int | None = None
    tools: frozenset[str] = frozenset()
    form: Form | None = None
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])


def streaming(body: Body) -> tuple[bool, bool, bool, bool]:
    """stream, usage, details and steps of `Wanted`."""
    stream, options = body.flag("stream"), body.mapping("stream_options")
    if options and not stream:
        raise Refusal(
            "stream_options is given without stream: it is legal only where stream is true",
            param="stream_options",
        )
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation", "continuous_usage_stats"):
            raise Refusal(
                f"stream_options has {shown(name)}: it holds include_usage only",
                param="stream_options",
            )
        if type(value) is not bool or (value and name != "include_usage"):
            raise Refusal(
                f"stream_options.{name} is {shown(value)}: it must be "
                + ("true or false" if name == "include_usage" else "false"),
                param="stream_options",
            )
    told = body.take("polydec", False)
    if told != "steps" and type(told) is not bool:
        raise Refusal(
            f'polydec is {shown(told)}: it must be true, false or "steps"', param="polydec"
        )
    return stream, bool(options.get("include_usage", False)), bool(told), told == "steps"


def asking(body: Body, model: LM, method: str, seed: int) -> dict[str, Any]:
    """The fields of an Ask that every endpoint shares, as keyword arguments; method, seed: where none is given.
    Raises ValueError for a value out of its range."""
    plain = {o.name: o for o in ask_limits()}
    sampling = {name: value for name in sampling_fields() if (value := body.take(name)) is not None}
    return {
        "method": body.take("method", method),
        "options": body.mapping("options"),
        "sampling": model.sampling(**sampling),
        "n": plain["n"].convert(body.take("n", 1)),
        "seed": plain["seed"].convert(body.take("seed", seed)),
        "stop": body.take("stop", ()),
        "stop_token_ids": body.take("stop_token_ids", ()),
        "ignore_eos": body.flag("ignore_eos"),
        "include_stop": body.flag("include_stop_str_in_output"),
        "order": body.take("order", "vllm"),
        "finish": body.flag("finish"),
        "steer": body.take("steer"),
        "steer_options": body.mapping("steer_options"),
        "negative_prompt": _whole(body.take("negative_prompt")),
    }


def _whole(prompt: Any) -> Any:
    """A second prompt: a text must hold whole characters, and whatever else it is is looked at with the model."""
    return whole_text(prompt, "negative_prompt") if isinstance(prompt, str) else prompt


def prompt_logprobs(body: Body, stream: bool) -> int | None:
    """vLLM's field. Raises Refusal for a value out of its range, or in a stream, which has no place for it."""
    value = body.whole("prompt_logprobs", 0, 64)
    if value is not None and stream:
        raise Refusal(
            f"prompt_logprobs is {value} with stream: it is legal only where stream is false (a stream of "
            "/v1/completions has those of echo with logprobs)",
            param="prompt_logprobs",
        )
    return value


def length(body: Body, *names: str, default: int | None = None, least: int = 1) -> int | None:
    """max_tokens by any of its names. Raises Refusal where two of them differ."""
    given = {name: value for name in names if (value := body.take(name)) is not None}
    for name, value in given.items():
        if type(value) is not int or value < least:
            raise Refusal(
                f"{name} is {shown(value)}: it must be a whole number of at least {least}"
                + (" (0 only with echo)" if value == 0 and type(value) is int else ""),
                param=name,
            )
    if len(set(given.values())) > 1:
        raise Refusal(
            f"{' and '.join(given)} are both given and differ: give one of them",
            param=next(iter(given)),
        )
    return next(iter(given.values()), default)
