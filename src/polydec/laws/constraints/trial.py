"""A constraint compiled in a process of its own first: the script of a `SubprocessWorker` (see `guidance`).

It answers by the grammar that came through, which the server then compiles from the same text with the same library, or by
what is wrong. What is worked out of a schema before (what may stay open, what can be said without a keyword) is worked out
here as well: a schema holds expressions and references that can keep that busy for hours.
"""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from polydec.base.errors import RequestError
from polydec.laws.constraints import compiler
from polydec.laws.constraints.anchors import ReferenceResolver
from polydec.laws.constraints.bounded import restrict_number_bounds
from polydec.laws.constraints.cases import ContradictorySchemaError, InexactSchemaError
from polydec.laws.constraints.closed import close_schema_objects
from polydec.laws.constraints.compiler import MalformedGrammarError
from polydec.laws.constraints.endless import grammar_refusal, unproductive_rules
from polydec.laws.constraints.exact import rewrite_schema_exactly
from polydec.laws.constraints.finite import has_finite_value, schema_references
from polydec.laws.constraints.formats import with_patterns
from polydec.laws.constraints.json_lark import json_schema_grammar

LOOKED = 1.0
"""Seconds of looking for the place in a schema that is wrong."""

Compile = Callable[[str], None]
"""Compile a grammar. Raises MalformedGrammarError, or EmptyLanguageError where it holds no text that the tokens can spell.
"""


class EmptyLanguageError(RequestError):
    """No token can begin a text."""

    def __init__(self) -> None:
        super().__init__("constraint holds no text that this model's tokens can spell")


_VOCABULARIES = dict[int, tuple[Any, tuple[int, ...]]]()
"""The tokens that were sent, and those that end a text, by the number that the sender gave them."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Of a vocabulary that is to be kept, {"number", "pieces", "ends"}: nothing. Of a constraint,
    {"number", "kind", "text", "called"}: what is compiled in its place, {"lark", "held": bytes}; or
    why it is not, {"error"}; or {"unknown": true}, where the vocabulary must be sent first.
    """
    # A vocabulary: it is remembered, and nothing is answered.
    if "pieces" in request:
        # Bytes came as text by latin-1, which has a character for each byte.
        spelled = tuple(None if p is None else p.encode("latin-1") for p in request["pieces"])
        ends = tuple(request["ends"])
        _VOCABULARIES[request["number"]] = compiler.build_guidance_tokenizer(spelled, ends), ends
        return {}
    # The process was started anew, so the caller sends its vocabulary again.
    if request["number"] not in _VOCABULARIES:
        return {"unknown": True}
    called = request["called"]
    trial = _TrialCompilation(*_VOCABULARIES[request["number"]])
    try:
        grammar = _KINDS[request["kind"]](request["text"], called, trial.compile_grammar)
    except ValueError as error:
        return {"error": str(error)}
    # Deep or large inputs end in these; the process goes on for others.
    except (MemoryError, RecursionError):
        return {"error": f"{called}: it is nested too deeply, or takes more memory than it may"}
    except BaseException as error:  # what narrows a schema expects one; and the library can panic
        return {"error": f"{called} cannot be read ({type(error).__name__}: {str(error)[:200]})"}
    return {"lark": grammar, "held": trial.held}


@dataclass
class _TrialCompilation:
    """Compiles a grammar to see whether it holds a text.

    Attributes:
        tokens: The library's table of tokens.
        ends: Token ids that end a text.
        held: Bytes that the last grammar takes.
    """

    tokens: Any
    ends: tuple[int, ...]
    held: int = 0

    def compile_grammar(self, lark: str) -> None:
        before = _used()
        matcher = compiler.compile_grammar_matcher(self.tokens, lark)
        # The first mask is computed here, too: it may be what takes too much.
        allowed = matcher.is_accepting() or self._goes_on(matcher.compute_bitmask())
        self.held = max(0, _used() - before)
        error = matcher.get_error()
        if error and not error.startswith("NoExtension"):
            raise MalformedGrammarError(error)
        if not allowed:
            raise EmptyLanguageError

    def _goes_on(self, mask: bytes) -> bool:
        """Whether a mask allows any token but an end (which the library allows where nothing else
        is).
        """
        bits = bytearray(mask)
        for x in self.ends:
            # The bit of each end is cleared.
            bits[x >> 3] &= ~(1 << (x & 7))
        return any(bits)


class _MallocInfo(ctypes.Structure):
    """What the C library says of its memory."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("fsmblks", "usmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _used() -> int:
    """Bytes that are in use here; 0 where the C library does not tell."""
    with suppress(AttributeError, OSError):
        told = ctypes.CDLL(None).mallinfo2
        told.restype = _MallocInfo
        memory = told()
        return int(memory.uordblks + memory.hblkhd)
    return 0


def _regex(pattern: str, called: str, compiles: Compile) -> str:
    grammar = f"start: /{compiler.require_llguidance().regex_to_lark(pattern, '')}/"
    try:
        compiles(grammar)
    except MalformedGrammarError as error:
        raise RequestError(f"{called}: {regex_error_message(str(error))}") from None
    return grammar


def regex_error_message(problem: str) -> str:
    """The library's complaint about an expression, with the place of what it marks by an
    underline.
    """
    mark = re.search(r"^( +)\^", problem, re.MULTILINE)
    why = re.search(r"^\s*error: (.*)$", problem, re.MULTILINE)
    if mark is None or why is None:
        return compiler.first_line(problem)
    return f"{why[1]} at character {max(0, len(mark[1]) - 4)}"  # the expression is indented by four spaces


def _lark(text: str, called: str, compiles: Compile) -> str:
    why = grammar_refusal(text)
    if why:
        raise RequestError(f"{called}: {why}")
    try:
        compiles(text)
    except MalformedGrammarError as error:
        raise RequestError(f"{called}: {_placed(str(error))}") from None
    if "start" in unproductive_rules(text):
        raise RequestError(
            f"{called}: rule start derives no text that ends, as it always needs itself again"
        )
    return text


def _placed(problem: str) -> str:
    """The library's complaint, with the line of the grammar as it was given."""
    line = re.match(r"(?:at )?(\d+)\((\d+)\): ", problem)
    what = compiler.first_line(problem[line.end() :] if line else problem)
    drawn = len(compiler.PLAIN.splitlines())
    if line:
        return f"line {max(1, int(line[1]) - drawn)}, column {line[2]}: {what}"
    return what


def _json_schema(text: str, called: str, compiles: Compile) -> str:
    parsed = json.loads(text)
    # Cheap checks come first, each of which may refuse the schema.
    schema_references(parsed)  # raises where it is nested too deeply
    schema = restrict_number_bounds(parsed)
    if not has_finite_value(schema):
        raise RequestError(f"{called} holds no finite value: it always needs itself again")
    # The library's own keywords are tried first; only what it lacks is rewritten.
    if not _counts_names(schema):
        try:
            return _grammar(schema, with_patterns, compiles)
        except MalformedGrammarError as error:
            problem = str(error)
    else:
        problem = (
            "minProperties is not kept"  # the library would count a name that is written twice
        )
    try:
        return _grammar(schema, lambda x: with_patterns(rewrite_schema_exactly(x)), compiles)
    except InexactSchemaError as error:
        raise RequestError(f"{called} at {error.at}: {error}") from None
    except ContradictorySchemaError as error:
        raise RequestError(f"{called} {error}") from None
    except MalformedGrammarError as error:
        raise RequestError(f"{called}: {compiler.first_line(_reason(str(error)))}") from None
    except (TypeError, KeyError, AttributeError, re.error):  # a keyword that is none
        where, problem = _place(schema, problem, compiles)
        raise RequestError(f"{called} at {where}: {compiler.first_line(problem)}") from None


def _counts_names(schema: Any) -> bool:
    """Whether a schema asks for several properties by their number, anywhere."""
    if isinstance(schema, list):
        return any(map(_counts_names, schema))
    if not isinstance(schema, Mapping):
        return False
    low = schema.get("minProperties")
    if isinstance(low, (int, float)) and low > 1:
        return True
    return any(_counts_names(x) for key, x in schema.items() if key not in ("const", "enum"))


def _grammar(
    schema: Mapping[str, Any], said: Callable[[Any], Mapping[str, Any]], compiles: Compile
) -> str:
    """Without the properties that nobody speaks of; with them, where nothing is left. said: in
    which words.
    """
    own = schema.get("x-guidance")
    if own is None:
        guided = {}
    else:
        guided = {"x-guidance": own}
    # Closed objects first. Where that leaves nothing, the schema means what the standard says.
    try:
        grammar = json_schema_grammar(
            {
                **said(close_schema_objects(schema, ReferenceResolver(schema).follow_reference)),
                **guided,
            }
        )
        compiles(grammar)
    except InexactSchemaError:
        raise
    except RequestError:
        grammar = json_schema_grammar({**said(schema), **guided})
        compiles(grammar)
    return grammar


_EACH = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
)


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas that stand in a schema, and where."""
    for key, value in schema.items():
        if key in _EACH and isinstance(value, Mapping):
            yield from ((f"{key}/{name}", x) for name, x in value.items() if isinstance(x, Mapping))
        elif key in _LIST and isinstance(value, list):
            yield from ((f"{key}/{i}", x) for i, x in enumerate(value) if isinstance(x, Mapping))
        elif key in _ONE and isinstance(value, Mapping):
            yield key, value


def _place(schema: Mapping[str, Any], problem: str, compiles: Compile) -> tuple[str, str]:
    """The innermost part of a schema that is refused by itself for the same reason, as a JSON
    pointer, as far as it is found soon; and the reason.
    """
    # Parts may refer to definitions, so these stay with each part that is tried.
    root = {k: schema[k] for k in ("$defs", "definitions", "$schema", "$id") if k in schema}
    reason = _reason(problem)
    where = "#"
    looking = True
    end = time.process_time() + LOOKED
    while looking:
        looking = False
        # Go down into the first part that is refused for the same reason.
        for path, part in _parts(schema):
            if time.process_time() > end:
                break
            try:
                compiles(json_schema_grammar({**root, **part}))
            except MalformedGrammarError as error:
                if _reason(str(error)) == reason:
                    schema = part
                    where = f"{where}/{path}"
                    looking = True
                    break
            except RequestError:
                continue
    return where, reason


def _reason(problem: str) -> str:
    return (
        problem.partition("failed to compile JSON schema: ")[2].partition("\n   1 | ")[0] or problem
    )


_KINDS: Mapping[str, Callable[[str, str, Compile], str]] = {
    "regex": _regex,
    "grammar": _lark,
    "json_schema": _json_schema,
}
