"""The fields of a request that constrain its answers: OpenAI's response_format and vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from polydec.api import LoadedModel
from polydec.base.errors import PolydecError
from polydec.base.options import short_repr
from polydec.base.subprocess_worker import WorkerBusyError, few_waiting
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints.canvas_constraints import compile_canvas_constraint
from polydec.laws.constraints.constraint_kinds import constraint_of
from polydec.laws.constraints.gbnf import lark_of
from polydec.laws.constraints.protocols import OutputConstraint, TokenLanguage
from polydec.methods.registry.family import MASKED_DIFFUSION, family_of
from polydec.serve.body import RequestBody
from polydec.serve.errors import RefusalError

GUIDED = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
    "span_of": "span_of",
}
"""Our names of vLLM's older fields; and one of our own."""

FIELDS = {
    "response_format": "OpenAI's: json_object, or json_schema with a schema",
    "structured_outputs": "vLLM's: one of json, regex, grammar, choice, json_object",
    "guided_json": "a JSON schema",
    "guided_regex": "a regular expression",
    "guided_grammar": "a grammar in Lark's form",
    "guided_choice": "one of several texts",
    "span_of": "a part of this text",
    "grammar": "a grammar in llama.cpp's form, GBNF",
    "constraint": "a kind of another name (triplets, or what another package brings): an object of its name and value",
}
"""The fields that constrain an answer, of which a request has one, and what each holds."""

WAITING = 8
"""Requests that wait for the one process that compiles constraints: half of those that are read at once, so that others go
on."""
SOON = 5
"""Seconds after which one that was refused for that may ask again: what one constraint may take."""

STRUCTURED = {
    "json": "json_schema",
    "regex": "regex",
    "grammar": "grammar",
    "choice": "choice",
    "json_object": "json_object",
}
"""Our names of what vLLM's `structured_outputs` holds."""

FORMATS = {"text": (), "json_object": ("schema",), "json_schema": ("json_schema",)}
"""The types of `response_format`, and what each holds beside its type."""


@dataclass(frozen=True)
class FormatField:
    """What a client calls its `response_format`, under which name a body holds it here.

    Attributes:
        name: Path of the format in what the client wrote.
        schema: Path of the object in which a schema lies, where the type is json_schema.
    """

    name: str
    schema: str

    def client_path(self, field: str) -> str:
        """What the client calls a field of a body."""
        return self.name if field == "response_format" else field


RESPONSE_FORMAT = FormatField("response_format", "response_format.json_schema")
TEXT_FORMAT = FormatField("text.format", "text.format")
"""Of /v1/responses: its schema lies beside the type."""


@dataclass(frozen=True, eq=False)
class PrecompiledConstraint:
    """A constraint with the language that was compiled when the request was read.

    All requests wait for the thread that plans them: with this it need not compile anything.

    Attributes:
        constraint: The constraint.
        vocab: Vocabulary that it was compiled for.
        ends: End tokens that it was compiled for.
        made: The compiled language.
    """

    constraint: OutputConstraint
    vocab: TokenVocabulary
    ends: frozenset[int]
    made: TokenLanguage[Any]

    def token_language(self, vocab: TokenVocabulary, ends: frozenset[int]) -> TokenLanguage[Any]:
        """Give the language over a vocabulary.

        Args:
            vocab: The vocabulary.
            ends: Tokens that end a text.

        Returns:
            The language that is there, or a newly compiled one for another vocabulary or other
            ends.
        """
        # By identity: to compare whole vocabularies would cost more than it saves.
        if vocab is self.vocab and ends == self.ends:
            return self.made
        return self.constraint.token_language(vocab, ends)


def read_request_constraint(
    body: RequestBody, model: LoadedModel, form: FormatField = RESPONSE_FORMAT
) -> OutputConstraint | None:
    """Read the constraint of a request.

    Args:
        body: Body of the request, from which the fields are taken.
        model: The model that is to answer.
        form: What the client calls the body's `response_format`. Default: by that name.

    Returns:
        The constraint; None where the request has none.

    Raises:
        RefusalError: A field is malformed, there are several constraints, or one cannot be kept.
    """
    # Every field is taken, so that one that is empty does not count as unknown.
    asked = {
        name: read
        for name, value in [(name, body.take_field(name)) for name in FIELDS]
        if value is not None and (read := _read(name, value, body, form))
    }
    paths = [form.client_path(name) for name in asked]
    if len(asked) > 1:
        raise RefusalError(
            f"{' and '.join(paths)} are both given: an answer has one constraint",
            param=_parameter(paths[0]),
        )
    # There is one entry or none.
    for name, value in asked.items():
        body.constraint_field = name
        return compile_field_constraint(paths[0], lambda value=value: constraint_of(value), model)
    return None


def _parameter(path: str) -> str:
    """The field of a request in which a path lies."""
    return path.partition(".")[0]


def compile_field_constraint(
    name: str, make: Callable[[], OutputConstraint | None], model: LoadedModel
) -> OutputConstraint | None:
    """Compile the constraint of a field, so that what is wrong with it is said of this field.

    Args:
        name: Path of the field.
        make: Makes the constraint; None from it means that there is none.
        model: The model that is to answer.

    Returns:
        The constraint with its language; without one where the model knows no end token.

    Raises:
        RefusalError: It cannot be kept, or too many wait for the process that compiles (503).
    """
    vocab = model.checkpoint.lm.vocab
    try:
        # Inside of `try`, since parsing a grammar may fail as well.
        constraint = make()
        if constraint is None or not vocab.eos:
            return constraint
        # A model that fills canvases has an automaton of its own, which is remembered.
        if family_of(model.checkpoint.lm) is MASKED_DIFFUSION:
            compile_canvas_constraint(constraint, vocab, vocab.eos)
            return constraint
        # One process compiles all constraints: a queue in front of it may not take all readers.
        with few_waiting(WAITING):
            return PrecompiledConstraint(
                constraint, vocab, vocab.eos, constraint.token_language(vocab, vocab.eos)
            )
    except WorkerBusyError as error:
        raise RefusalError(
            f"{name}: {error}",
            status=503,
            param=_parameter(name),
            code="queue_full",
            retry=SOON,
        ) from None
    except PolydecError as error:
        raise RefusalError(f"{name}: {error}", param=_parameter(name)) from None


def _read(name: str, value: Any, body: RequestBody, form: FormatField) -> dict[str, Any]:
    """What a field asks for, by our names; nothing where it asks for text."""
    if name in GUIDED:
        return {GUIDED[name]: value}
    if name == "grammar":
        return _gbnf(value)
    if not isinstance(value, Mapping):
        path = form.client_path(name)
        raise RefusalError(
            f"{path} is {short_repr(value)}: it must be an object", param=_parameter(path)
        )
    if name == "constraint":
        # The name of the kind is the member's own name.
        if len(value) != 1:
            raise RefusalError(
                f"constraint has {len(value)} members: it must be an object of one name and its value",
                param=name,
            )
        return dict(value)
    if name == "structured_outputs":
        body.refuse_members(name, value, STRUCTURED)
        return {
            STRUCTURED[key]: x for key, x in value.items() if key in STRUCTURED and x is not None
        }
    return _format(value, body, form)


def _gbnf(value: Any) -> dict[str, Any]:
    """llama.cpp's field. An empty text asks for nothing there."""
    if value == "":
        return {}
    try:
        return {"grammar": lark_of(value)}
    except PolydecError as error:
        raise RefusalError(f"grammar: {error}", param="grammar") from None


def _format(value: Mapping[str, Any], body: RequestBody, form: FormatField) -> dict[str, Any]:
    """The constraint in OpenAI's or llama.cpp's response_format.

    OpenAI has {"type": "text"}, {"type": "json_object"} and {"type": "json_schema", "json_schema":
    {"schema": …}}; llama.cpp has {"type": "json_object", "schema": …}.
    """
    kind = value.get("type")
    if kind not in FORMATS:
        raise RefusalError(
            f"{form.name}.type is {short_repr(kind)}: it must be text, json_object or json_schema",
            param=_parameter(form.name),
        )
    body.refuse_members(form.name, value, ("type", *FORMATS[kind]))
    if kind == "text":
        return {}
    if kind == "json_object":
        # llama.cpp puts the schema beside the type.
        held = value
    else:
        held = value.get("json_schema")
    if isinstance(held, Mapping):
        schema = held.get("schema")
    else:
        schema = None
    # Any JSON object, as OpenAI means it; with a schema it is llama.cpp's form.
    if kind == "json_object" and schema in (None, {}):
        return {"json_object": True}
    if not isinstance(held, Mapping) or not isinstance(schema, Mapping):
        if kind == "json_object":
            where = form.name
        else:
            where = form.schema
        raise RefusalError(
            f"{where} has no schema: it must hold a JSON schema by that name",
            param=_parameter(where),
        )
    if kind == "json_schema":
        known = ("name", "description", "schema", "strict")
        body.refuse_members(form.schema, held, known)
    return {"json_schema": schema}
