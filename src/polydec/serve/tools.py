"""Tool calls: the tools of a request, and the calls that an answer's text holds.

A chat template shows the tools to the model; what the model writes is text, in the form that it was trained on. Two forms
are read: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of times and anywhere in the text, and an answer
that is nothing but such an object or a list of them. What names no tool of the request, or is not whole, stays text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.options import shown
from polydec.serve.body import Body
from polydec.serve.errors import Refusal

OPEN, CLOSE = "<tool_call>", "</tool_call>"

MOST = 256
"""Tools of a request."""


@dataclass(frozen=True)
class Call:
    """arguments: a JSON text."""

    name: str
    arguments: str

    def to_json(self, name: str) -> dict[str, Any]:
        """name: the call's id."""
        return {
            "id": name,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def read_tools(body: Body) -> tuple[Mapping[str, Any], ...]:
    """The tools that the model is shown. Raises Refusal for what cannot be honoured."""
    tools, choice = body.take("tools", []), body.take("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise Refusal(
            f"tool_choice is {shown(choice)}: this server takes only 'auto' or 'none'",
            param="tool_choice",
        )
    if body.take("parallel_tool_calls", True) is not True and tools:
        raise Refusal(
            "parallel_tool_calls is not true: how many tools an answer calls is not limited here",
            param="parallel_tool_calls",
        )
    if not isinstance(tools, list) or len(tools) > MOST:
        raise Refusal(
            f"tools is {shown(tools)}: it must be a list of at most {MOST} tools", param="tools"
        )
    for at, tool in enumerate(tools):
        _check(f"tools[{at}]", tool)
    return () if choice == "none" else tuple(tools)


def _check(where: str, tool: Any) -> None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type") != "function":
        raise Refusal(
            f"{where} is {shown(tool)}: it must be {{'type': 'function', 'function': {{…}}}}",
            param="tools",
        )
    name, about, schema = (
        function.get("name"),
        function.get("description"),
        function.get("parameters"),
    )
    if not isinstance(name, str) or not 1 <= len(name) <= 256:
        raise Refusal(
            f"{where}.function.name is {shown(name)}: it must be a text of 1 to 256 characters",
            param="tools",
        )
    if about is not None and not isinstance(about, str):
        raise Refusal(
            f"{where}.function.description is {shown(about)}: it must be a text", param="tools"
        )
    if schema is not None and not isinstance(schema, Mapping):
        raise Refusal(
            f"{where}.function.parameters is {shown(schema)}: it must be a JSON schema",
            param="tools",
        )
    if function.get("strict"):
        raise Refusal(
            f"{where}.function.strict is true: arguments are not bound to their schema here",
            param="tools",
        )


def names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """What may be called."""
    return frozenset(tool["function"]["name"] for tool in tools)


def past_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    """Calls of an earlier turn as templates take them: the arguments as an object. Raises Refusal."""
    out = list[dict[str, Any]]()
    for at, call in enumerate(calls if isinstance(calls, list) else [calls]):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refusal(
                f"{where}[{at}] is {shown(call)}: it must have a function with a name",
                param="messages",
            )
        given = function.get("arguments", "{}")
        try:
            arguments = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, Mapping):
            raise Refusal(
                f"{where}[{at}].function.arguments is {shown(given)}: it must be a JSON object as a text",
                param="messages",
            )
        out.append(
            {
                "id": str(call.get("id", "")),
                "type": "function",
                "function": {"name": function["name"], "arguments": dict(arguments)},
            }
        )
    return out


class Reader:
    """Parts a text that comes in pieces into what is said and what is called. known: names of tools.

    White space beside a call is dropped. Where the pieces are cut makes no difference.
    """

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known
        self._held = ""  # not yet told: what may become a call, or white space before one
        self._begun = False  # something was told, so that the whole is not a call
        self._called = False  # the last thing was a call

    def feed(self, text: str) -> tuple[str, list[Call]]:
        """What became certain with one more piece."""
        self._held += text
        said, calls = "", list[Call]()
        while True:
            start = self._held.lstrip()
            if not self._begun and start[:1] in ("", "{", "["):  # the whole answer may be a call
                return said, calls
            at = self._held.find(OPEN)
            if at < 0:
                return said + self._say(self._held[: self._safe()]), calls
            end = self._held.find(CLOSE, at)
            if end < 0:
                return said + self._say(self._held[:at].rstrip()), calls
            inside, found = self._held[at + len(OPEN) : end], self._held[at : end + len(CLOSE)]
            call = _one(_parsed(inside), self.known)
            if call is None:
                said += self._say(self._held[: at + len(found)])
                continue
            said += self._say(self._held[:at].rstrip())
            self._held = self._held.lstrip()[len(found) :]
            self._begun = self._called = True
            calls.append(call)

    def end(self) -> tuple[str, list[Call]]:
        """What was held back."""
        if not self._begun:
            whole = _parsed(self._held)
            found = [_one(x, self.known) for x in (whole if isinstance(whole, list) else [whole])]
            calls = [call for call in found if call is not None]
            if calls and len(calls) == len(found):
                return "", calls
        self._begun = True
        said, calls = self.feed("")
        return said + (self._held.lstrip() if self._called else self._held), calls

    def _say(self, text: str) -> str:
        """Tell a beginning of what is held."""
        self._held = self._held[len(text) :]
        if self._called:
            text = text.lstrip()
        if text:
            self._begun, self._called = True, False
        return text

    def _safe(self) -> int:
        """Where the end of what is held begins that may become part of a call, or white space before one."""
        held = self._held
        for size in range(min(len(OPEN) - 1, len(held)), 0, -1):
            if OPEN.startswith(held[-size:]):
                held = held[:-size]
                break
        return len(held.rstrip())


def read_calls(text: str, known: frozenset[str]) -> tuple[str, list[Call]]:
    """What a whole text says and calls."""
    reader = Reader(known)
    said, calls = reader.feed(text)
    rest, more = reader.end()
    return said + rest, calls + more


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _one(value: Any, known: frozenset[str]) -> Call | None:
    """A call of a known tool, None where it is none."""
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or name not in known:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    return (
        Call(name, json.dumps(arguments, ensure_ascii=False))
        if isinstance(arguments, Mapping)
        else None
    )
