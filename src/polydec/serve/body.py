"""The fields of a request. Each is taken by somebody; what nobody takes is refused, so that nothing is dropped in silence."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from polydec.api import Ask, LoadedModel
from polydec.base.edge import parse_object, whole_text
from polydec.base.options import short_repr
from polydec.laws.constraints.tool_calls import ToolCallForm
from polydec.laws.shapers.sampling import all_sampling_fields as sampling_fields
from polydec.laws.shapers.sampling import all_sampling_rules as sampling_rules
from polydec.models.formats.images import is_image_part
from polydec.request.fields import ALTERNATIVES, ask_options
from polydec.serve.errors import RefusalError
from polydec.serve.image_parts import read_image_part
from polydec.serve.known_fields import REASONS
from polydec.serve.settings import RequestLimits

IDLE = ("user", "metadata", "safety_identifier", "prompt_cache_key", "request_id", "service_tier")
"""Fields that clients send and that change nothing here, whatever they hold."""

ONLY: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "store": (False,),
        "best_of": (1,),  # of /v1/completions any number
        "use_beam_search": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "detokenize": (True,),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "background": (False,),
        "truncation": ("disabled",),
        "previous_response_id": (),
        "conversation": (),
        "suffix": ("",),
        "length_penalty": (1, 1.0),
        "priority": (0,),
        "truncate_prompt_tokens": (),
        "logit_processors": ([],),
        "bad_words": ([],),
        "verbosity": ("medium",),
        "documents": ([],),
        "watermarking": (False,),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "return_token_offsets": (False,),
        "return_prompt_text": (False,),
        "stream_interval": (1,),
        "return_tokens": (False,),
        "return_progress": (False,),
        "timings_per_token": (False,),
        "post_sampling_probs": (False,),
        "reasoning_control": (False,),
        "mirostat": (0,),
        "dynatemp_range": (0, 0.0),
        "n_probs": (0,),
        "n_indent": (0,),
        "n_keep": (0,),
        "min_keep": (0,),
        "id_slot": (-1,),
        "t_max_predict_ms": (0,),
        "lora": ([],),
    }
)
"""Fields of which only these values are honoured, none (null) besides: they say what the server does anyway."""


KEPT = ("store", "previous_response_id", "best_of")
"""Of these the ones that some endpoint takes itself; all others refuse them as they do the rest of ONLY."""


ASKED: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: name
            for name in (
                "method",
                "options",
                "n",
                "seed",
                "stop",
                "stop_token_ids",
                "ignore_eos",
                "sanitize_control_tokens",
                "infill_repeat",
                "order",
                "finish",
                "reasoning_push",
                "steer",
                "steer_options",
                "negative_prompt",
                "units",
                "covers",
                "cache",
                "cache_options",
                "reuse",
                "reuse_key",
                "reuse_again",
                "cache_salt",
                "source",
            )
        },
        "include_stop_str_in_output": "include_stop",
    }
)
"""Fields of every endpoint, each with its name in an Ask, which says its type, range and help."""


class RequestBody:
    """What a client sent. null means that a field was not given, as clients write it.

    Args:
        data: The fields.
        limits: Limits of the server that reads it. None: it comes from a file, and there are none.
        lenient: Whether unknown fields are ignored, in place of refused. Default False.

    Attributes:
        ignored: Unknown fields that were ignored.
        constraint_field: The field that constrains the answer, once it was read; "" where none does.

    Raises:
        RefusalError: A field of ONLY has another value.
    """

    def __init__(
        self, data: Mapping[str, Any], limits: RequestLimits | None = None, *, lenient: bool = False
    ) -> None:
        self.limits = limits
        self.lenient = lenient
        self.ignored = list[str]()
        self.constraint_field = ""
        # Fields are taken out one by one: what is left at the end is unknown.
        self._left = {k: v for k, v in data.items() if v is not None}
        self.fields = frozenset(data)
        # Grows with every field that is read, and serves to suggest names.
        self._known = set(IDLE) | set(ONLY)
        # Fields without an effect go, and those with one legal effect are checked, before anybody
        # reads.
        for name in IDLE:
            self._left.pop(name, None)
        for name in ONLY:
            if name not in KEPT:
                self._drop_idle(name)

    def _drop_idle(self, name: str) -> None:
        """Take a field that says what the server does anyway. Raises RefusalError where it does not."""
        legal = ONLY[name]
        if name in self._left and not any(_same(self._left[name], x) for x in legal):
            allowed = " or ".join(map(short_repr, legal)) or "none"
            raise RefusalError(
                f"{name} is {short_repr(self._left[name])}: this server takes only {allowed}",
                param=name,
            )
        self._left.pop(name, None)

    def take_field(self, name: str, default: Any = None) -> Any:
        """Take a field as it stands.

        Args:
            name: Its name.
            default: What it is where it was not given.

        Returns:
            The value.
        """
        self._known.add(name)
        return self._left.pop(name, default)

    def peek_field(self, name: str) -> Any:
        """A field that somebody takes later; None where it is not given."""
        return self._left.get(name)

    def put_field(self, name: str, value: Any) -> None:
        """Put a field under the name that it has elsewhere.

        Args:
            name: That name.
            value: The value.

        Raises:
            RefusalError: That name is given as well.
        """
        if name in self._left:
            raise RefusalError(f"{name} is given under two names: give one of them", param=name)
        self._left[name] = value

    def boolean_field(self, name: str, default: bool = False) -> bool:
        """Take a field that is true or false.

        Args:
            name: Its name.
            default: What it is where it was not given. Default False.

        Returns:
            The value.

        Raises:
            RefusalError: It is something else.
        """
        value = self.take_field(name, default)
        # By type: 0 and 1 are equal to false and true in Python.
        if type(value) is not bool:
            raise RefusalError(
                f"{name} is {short_repr(value)}: it must be true or false", param=name
            )
        return value

    def whole_number(self, name: str, low: int, high: int) -> int | None:
        """Take a field that is a whole number.

        Args:
            name: Its name.
            low: Least legal value.
            high: Largest legal value.

        Returns:
            The value; None where it was not given.

        Raises:
            RefusalError: It is something else.
        """
        # A bool is an int in Python, so the type is compared.
        value = self.take_field(name)
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise RefusalError(
                f"{name} is {short_repr(value)}: it must be a whole number in {low} to {high}",
                param=name,
            )
        return value

    def mapping_field(self, name: str) -> Mapping[str, Any]:
        value = self.take_field(name, {})
        if not isinstance(value, Mapping):
            raise RefusalError(
                f"{name} is {short_repr(value)}: it must hold values by name", param=name
            )
        return value

    def refuse_members(
        self,
        where: str,
        value: Mapping[str, Any],
        known: Collection[str],
        nothing: Collection[Any] = (None,),
    ) -> None:
        """Refuse an unknown member of an object inside a field, or ignore it where that is allowed.

        Args:
            where: Path of the object, which begins with the field's name.
            value: The object.
            known: Names of the members that are read.
            nothing: Values by which an unknown member says nothing. Default: None alone.

        Raises:
            RefusalError: A member is unknown.
        """
        # Members that hold nothing pass, as clients send back what they received.
        for name in (k for k, v in value.items() if k not in known and v not in nothing):
            if self.lenient:
                self.ignored.append(f"{where}.{name}")
                continue
            raise RefusalError(
                f"field {where}.{name[:60]} is unknown: " + _meant(name, known),
                param=re.split(r"[.\[]", where, maxsplit=1)[0],
                code="unknown_field",
            )

    def refuse_rest(self) -> None:
        """Refuse the fields that nobody took, or ignore them where that is allowed.

        Raises:
            RefusalError: A field is unknown.
        """
        for name in KEPT:
            self._drop_idle(name)
        if self.lenient:
            self.ignored += self._left
            self._left = {}
        for name in self._left:
            # Cut short: the comparison takes time with the square of the length.
            near = get_close_matches(name[:100], self._known, 3, 0.6)
            if name in REASONS:  # another server takes it
                raise RefusalError(
                    f"field {name} is not taken here: {REASONS[name]}",
                    param=name,
                    code="unknown_field",
                )
            raise RefusalError(
                f"field {short_repr(name)} is unknown: "
                + (
                    _meant(name, self._known) if near else "this server takes no field of that name"
                ),
                param=name[:100],
                code="unknown_field",
            )


def _meant(name: str, known: Collection[str]) -> str:
    """The names that an unknown one may stand for; all of them where none is close."""
    near = get_close_matches(name[:100], known, 3, 0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"it holds {', '.join(known)}"


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b  # true is not 1


def read_body(
    text: bytes, limits: RequestLimits | None = None, *, lenient: bool = False
) -> RequestBody:
    """Read the fields in a JSON text.

    Args:
        text: The body's bytes.
        limits: Limits of the server. None: there are none.
        lenient: Whether unknown fields are ignored. Default False.

    Returns:
        The fields.

    Raises:
        RequestError: The text is no JSON object.
        RefusalError: A field stands in it twice, or it holds more than may be read.
    """
    if limits is not None:
        _count(text, limits.body)
    return RequestBody(read_object(text, "the body"), limits, lenient=lenient)


def read_object(text: bytes | str, what: str, holds: str = "") -> dict[str, Any]:
    """Read the object in a JSON text that a client sent.

    Args:
        text: The text.
        what: What it is, for messages.
        holds: The member that holds a request's fields; "" where the object itself does.

    Returns:
        The object.

    Raises:
        RequestError: There is none, or it holds a number that no answer could repeat.
        RefusalError: A field stands twice in an object, or a text has half a character.
    """
    twice = list[str]()

    def object_pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        # Two readers of one body could each take another of the two values.
        if len(out) < len(items) and not twice:  # a reader would drop one of two
            seen = set[str]()
            twice.extend([name for name, _ in items if name in seen or seen.add(name)][:1])
        return out

    if isinstance(text, str):
        # Kept here, so that the check below can name the field.
        raw = text.encode("utf-8", "surrogatepass")
    else:
        raw = text
    data = parse_object(raw, what, object_pairs, finite=True)
    if twice:
        raise RefusalError(
            f"field {short_repr(twice[0])} is given twice: give it once", param=twice[0][:100]
        )
    # Only an escape can bring half a character, so most bodies need no look at their texts.
    if _HALF.search(raw):
        inner = data.get(holds)
        if isinstance(inner, Mapping):
            _check_characters(inner)
        _check_characters(data)
    return data


_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""How half a character may come: UTF-8 has no form for one."""


def _check_characters(data: Mapping[str, Any]) -> None:
    """Raise Refusal where a text in these fields, or the name of one, holds half a character."""
    for name, value in data.items():
        if not is_whole(name):
            raise RefusalError(
                f"field {short_repr(name)} is unknown: its name holds half a character, so no field has it",
                param=name[:100],
                code="unknown_field",
            )
        if not is_whole(value):
            raise RefusalError(
                f"{name} holds half a character: it must be whole Unicode text", param=name
            )


_LONE = re.compile("[\ud800-\udfff]")


def is_whole(value: Any) -> bool:
    """Whether no text in a JSON value, or name of a member, holds half a character."""
    # A stack in place of recursion: the value may be nested deeply.
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str) and _LONE.search(item):
            return False
        # Names of members may hold half a character as well.
        if isinstance(item, Mapping):
            left += item.keys()
            left += item.values()
        elif isinstance(item, list):
            left += item
    return True


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _count(text: bytes, body: int) -> None:
    """Raise RefusalError for a body of more values than are read at once: nothing else runs while
    they are.

    `body` is the most bytes of a body. A text counts as one value, whatever it holds.
    """
    # Commas count values; brackets, braces and colons count what Python makes an object for.
    for what, marks, most in (
        ("values", b",", body // 8),
        ("lists, objects and fields", b"[{:", body // 32),
    ):
        # A quick count over everything first; texts are parted off only where that is too much.
        if _marks(text, marks) > most and _outside(text, marks, most) > most:
            raise RefusalError(
                f"the body holds more than {most} {what}, which is what this server takes",
                status=413,
            )


def _outside(text: bytes, marks: bytes, most: int) -> int:
    """How many marks stand outside of texts; counted no further than `most`. Between two texts other threads may run."""
    count = 0
    at = 0
    # A mark within a text is no mark.
    for inside in _TEXT.finditer(text):
        count += _marks(text[at : inside.start()], marks)
        if count > most:
            return count
        at = inside.end()
    return count + _marks(text[at:], marks)


def _marks(text: bytes, marks: bytes) -> int:
    return sum(text.count(mark) for mark in marks)


@dataclass(frozen=True)
class ResponseOptions:
    """What a request asks of the server beside its prompts.

    Attributes:
        asks: The requests, one for each prompt.
        stream: Whether what is written is sent at once.
        usage: Whether a stream ends with counts.
        details: Whether the field `polydec` is sent (tokens, drafted or not, metrics).
        echoes: Text before each answer: its prompt. None: it is not asked for.
        silent: Whether nothing of the answer after that is shown.
        steps: Whether what each round did, and all passes, are sent as well.
        prompt_logprobs: Alternatives to list beside each token of a prompt, in vLLM's field of that
            name. None: no such field.
        tools: Names of the tools that answers may call.
        form: Form in which calls stand, where answers are bound to one. None: any.
        told: Fields of the request that the response repeats.
        thoughts: Whether what was thought is sent.
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
    form: ToolCallForm | None = None
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])
    thoughts: bool = True


def read_stream_options(body: RequestBody) -> tuple[bool, bool, bool, bool]:
    """stream, usage, details and steps of `ResponseOptions`."""
    stream = body.boolean_field("stream")
    options = body.mapping_field("stream_options")
    # OpenAI refuses this too.
    if options and not stream:
        raise RefusalError(
            "stream_options is given without stream: it is legal only where stream is true",
            param="stream_options",
        )
    known = ("include_usage", "include_obfuscation", "continuous_usage_stats")
    body.refuse_members("stream_options", options, known)
    # The two others are known to clients and have no effect here, so they must be off.
    for name, value in ((k, v) for k, v in options.items() if k in known):
        if type(value) is not bool or (value and name != "include_usage"):
            raise RefusalError(
                f"stream_options.{name} is {short_repr(value)}: it must be "
                + ("true or false" if name == "include_usage" else "false"),
                param="stream_options",
            )
    told = body.take_field("polydec", False)
    if told != "steps" and type(told) is not bool:
        raise RefusalError(
            f'polydec is {short_repr(told)}: it must be true, false or "steps"', param="polydec"
        )
    return stream, bool(options.get("include_usage", False)), bool(told), told == "steps"


def read_ask_fields(
    body: RequestBody, model: LoadedModel, method: str, seed: int
) -> dict[str, Any]:
    """Read the fields of an Ask that every endpoint shares.

    Args:
        body: Body of the request, from which the fields are taken.
        model: The model that is to answer.
        method: Decoding method where the request names none.
        seed: Seed where the request has none.

    Returns:
        The fields as keyword arguments of an Ask.

    Raises:
        RequestError: A value is out of its range.
        RefusalError: A field is malformed, or lacks another one.
    """
    # The server's own values, which stand where the request is silent.
    usual = {"method": method, "seed": seed}
    fields = {field: _field(body, name, field, usual) for name, field in ASKED.items()}
    if fields["reuse"] is not None and not fields["reuse_key"]:
        raise RefusalError(
            f"reuse is {fields['reuse']!r}: name the text (reuse_key), as another client's is none of yours",
            param="reuse_key",
        )
    # Over bytes the vocabulary is another, and so are ids of tokens.
    model = model.in_units(fields["units"], fields["covers"])
    size = model.checkpoint.lm.vocab.size
    # Before conversion: a list longer than the vocabulary is a mistake, and long to read.
    for name in (name for rule in sampling_rules().values() for name in rule.token_ids):
        _entries(body, name, size)
    # What is left out stays out: the checkpoint's own value stands there.
    sampling = {
        name: value for name in sampling_fields() if (value := body.take_field(name)) is not None
    }
    return {"sampling": model.sampling_with(**sampling), **fields}


def _field(body: RequestBody, name: str, field: str, usual: Mapping[str, Any]) -> Any:
    """A field of an Ask by the name that it has here; usual: of the server, where none is given."""
    option = ask_options()[field]
    # By kind, so that the sentences of refusal are those of HTTP, not of Python.
    if option.kind is bool:
        return body.boolean_field(name)
    if option.kind is Mapping:
        return body.mapping_field(name)
    value = body.take_field(name, usual.get(field, option.default))
    # Whatever it holds is looked at with the model.
    if option.kind is object:
        return _whole(value, name, body)
    return option.convert_value(value)


def _entries(body: RequestBody, name: str, size: int) -> None:
    """Refuse more tokens than there are, before anybody looks at each."""
    value = body.peek_field(name)
    if isinstance(value, (list, Mapping)) and len(value) > size:
        raise RefusalError(
            f"{name} has {len(value)} entries: the vocabulary has {size} tokens", param=name
        )


def _whole(prompt: Any, name: str, body: RequestBody) -> Any:
    """A second prompt or a source: a text must hold whole characters, an image has no unknown member,
    and whatever else it is is looked at with the model.
    """
    if isinstance(prompt, str):
        return whole_text(prompt, name)
    if is_image_part(prompt):
        return read_image_part(name, prompt, body)
    return prompt


def prompt_logprobs(body: RequestBody, stream: bool) -> int | None:
    """Read vLLM's field of that name.

    Args:
        body: Body of the request, from which the field is taken.
        stream: Whether the request asks for a stream.

    Returns:
        Alternatives for each token of the prompt; None where it was not given.

    Raises:
        RefusalError: The value is out of its range, or stands in a stream, which has no place for
            it.
    """
    value = body.whole_number("prompt_logprobs", 0, ALTERNATIVES)
    if value is not None and stream:
        raise RefusalError(
            f"prompt_logprobs is {value} with stream: it is legal only where stream is false (a stream of "
            "/v1/completions has those of echo with logprobs)",
            param="prompt_logprobs",
        )
    return value


def read_max_tokens(
    body: RequestBody, *names: str, default: int | None = None, least: int = 1
) -> int | None:
    """Read max_tokens by any of its names.

    Args:
        body: Body of the request, from which the fields are taken.
        names: The field's names at this endpoint.
        default: What it is where it was not given. Default None.
        least: Least legal value. Default 1.

    Returns:
        Tokens of an answer, at most.

    Raises:
        RefusalError: Two of the names differ, or a value is out of its range.
    """
    # Every name is taken, so that none counts as unknown.
    lengths = {name: value for name in names if (value := body.take_field(name)) is not None}
    for name, value in lengths.items():
        if type(value) is not int or value < least:
            raise RefusalError(
                f"{name} is {short_repr(value)}: it must be a whole number of at least {least}"
                + (" (0 only with echo)" if value == 0 and type(value) is int else ""),
                param=name,
            )
    # The same number twice is legal: some clients send both names to be safe.
    if len(set(lengths.values())) > 1:
        raise RefusalError(
            f"{' and '.join(lengths)} are both given and differ: give one of them",
            param=next(iter(lengths)),
        )
    return next(iter(lengths.values()), default)
