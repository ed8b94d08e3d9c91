"""A chat template rendered in a process of its own: the script of a
`polydec.base.subprocess_worker.SubprocessWorker`.

It imports nothing but jinja2, so that it starts quickly and stays small. It must not be imported by
anything else.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationTag(Extension):
    """{% generation %} marks the assistant's text for training; when decoding it is only its
    content."""

    tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride]   (of a class there too)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Read the tag and its content: a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body).set_lineno(line)]  # what is set inside is not known behind it


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(8)
def _compiled(source: str) -> jinja2.Template:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda format: datetime.now().strftime(format),
    }
    return env.from_string(source)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The text of a chat, or what is wrong with it.

    Args:
        request: ``source``: the template; ``values``: values for its names; ``most``: characters
            that it may write.

    Returns:
        The text under "text", or a sentence under "error".
    """
    try:
        text = _compiled(request["source"]).render(**request["values"])
    except MemoryError:
        return {"error": "it takes more memory than a chat template may"}
    except RecursionError:
        return {"error": "it calls itself, or is nested, too deeply"}
    except Exception as e:  # a template can raise whatever Python can
        return {"error": (str(e) or type(e).__name__)[:10_000]}
    most = request["most"]
    if len(text) <= most:
        return {"text": text}
    return {"error": f"it writes more than {most} characters"}
