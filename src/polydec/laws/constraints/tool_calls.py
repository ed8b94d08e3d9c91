"""Calls of functions, written as the model was taught to, with arguments that obey the functions' schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.types import TokenVocabulary

if TYPE_CHECKING:
    from polydec.laws.constraints.guidance import GrammarLanguage
    from polydec.laws.constraints.json_schema import JsonSchema


@dataclass(frozen=True)
class ToolCallForm:
    """How a model writes a call: `{"name": …, KEY: {…}}`, in tags or by itself.

    Attributes:
        tags: Whether a call stands between tags. Default True.
        key: Name of the member with the arguments. Default "arguments".
    """

    tags: bool = True
    key: str = "arguments"


OPEN = "<tool_call>"
CLOSE = "</tool_call>"

SPACED = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
)
"""White space of arguments: a space behind each comma and colon, as templates write earlier calls.
"""


@dataclass(frozen=True)
class ToolFunction:
    """A function that may be called.

    Attributes:
        name: Its name.
        arguments: Schema of its arguments.
    """

    name: str
    arguments: JsonSchema


@dataclass(frozen=True)
class ToolCalls:
    """The answer is a call of one of the functions, or several calls.

    In tags all is text up to an opening tag, and behind a closing one. By itself a call is the
    complete answer, and an answer that begins with `{` or `[` is one.

    Attributes:
        functions: What may be called.
        form: How the model writes a call.
        many: Whether several calls may come. Default True.
        text: Whether the answer may say something as well, or call nothing. Default False.
        said: Instead of a call the answer may be a value of this schema; only in tags, which
            separate the two. None: it may not.
    """

    functions: tuple[ToolFunction, ...]
    form: ToolCallForm = ToolCallForm()
    many: bool = True
    text: bool = False
    said: JsonSchema | None = None

    def token_language(self, vocab: TokenVocabulary, ends: frozenset[int]) -> GrammarLanguage:
        """Compile the calls for a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            RequestError: A schema cannot be followed, or the grammar is refused.
            MissingError: llguidance is not installed.
        """
        # Late: whoever reads calls out of an answer compiles no grammar.
        from polydec.laws.constraints import guidance
        from polydec.laws.constraints.json_lark import json_values_rule

        bodies = [f'f{at} "}}"' for at in range(len(self.functions))]
        rules = [self._start, f"body: {' | '.join(bodies)}"]
        for at, function in enumerate(self.functions):
            # The name is fixed text, so the schema of the arguments is known behind it.
            head = f'{{"name": {_json(function.name)}, "{self.form.key}": '
            try:
                schema = function.arguments.followed_schema(vocab, ends)
            # What is missing for every schema is not said of one function.
            except RequestError as error:
                raise RequestError(
                    error_sentence(f"function {short_repr(function.name)}: {error}")
                ) from None
            # Arguments are spaced as templates write earlier calls.
            rules.append(f"f{at}: {_json(head)} a{at}\na{at}: {json_values_rule(schema, SPACED)}")
        if self.said is not None:
            rules.append(f"said: {json_values_rule(self.said.followed_schema(vocab, ends))}")
        return guidance.compile_language(
            "grammar", "\n".join([*rules, self._text]), "tools", vocab, ends
        )

    @property
    def _start(self) -> str:
        """The rules of an answer, where `body` is a call's object."""
        if self.said is not None:
            aside = " | said"
        else:
            aside = ""
        # Without tags a call is bare JSON, and several stand in a list.
        if not self.form.tags:
            if self.many:
                calls = 'body | "[" body (", " body)* "]"'
            else:
                calls = "body"
            return f"start: {calls}{' | REST?' if self.text else ''}"
        # What stands between the tags is on lines of its own, as models were trained to write it.
        call = f"call: {_json(OPEN)} inside\ninside: {_json(chr(10))} body {_json(chr(10) + CLOSE)}"
        if self.text:
            return (
                f"start: {'(lead inside)* REST?' if self.many else 'lead inside | REST?'}\n{call}"
            )
        # Text that is said aside is an alternative to calls.
        return f"start: {'call (SPACE call)*' if self.many else 'call'}{aside}\n{call}"

    @property
    def _text(self) -> str:
        """What is said: up to the first opening tag, or to the end where there is none."""
        anything = "/(.|\\n)+/"
        # What is said must not hold an opening tag, or begin like a call.
        if self.form.tags:
            never = f"/(.|\\n)*{OPEN}(.|\\n)*/"
        else:
            never = "/[ \\t\\r\\n]*[{\\[](.|\\n)*/"
        return f"lead[lazy]: /(.|\\n)*{OPEN}/\nREST: {anything} & ~{never}\nSPACE: /\\n?/"


def _json(text: str) -> str:
    """A text in quotes, in JSON and in a grammar alike."""
    return json.dumps(text, ensure_ascii=False)
