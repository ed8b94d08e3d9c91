"""The calls of tools that a text holds, complete or as it comes in pieces.

Two forms are read: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of times and anywhere in the text, and an
answer that is nothing but such an object or a list of them. What names no tool of the request stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polydec.base.edge import json_value_or_none
from polydec.laws.constraints.tool_calls import CLOSE, OPEN, ToolCallForm


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        name: Name of the tool.
        arguments: Its arguments, a JSON text.
    """

    name: str
    arguments: str

    @property
    def argument_values(self) -> Any:
        """Its arguments as Python has them; None where the answer ended within them."""
        return json_value_or_none(self.arguments)

    def to_json(self, name: str) -> dict[str, Any]:
        """Write the call as chats have it.

        Args:
            name: Id of the call.

        Returns:
            The call's object.
        """
        return {
            "id": name,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call.

    Attributes:
        at: Number of the call in its answer.
        name: Name of the tool, with the first piece alone; else None.
        arguments: More of the arguments' JSON text.
    """

    at: int
    name: str | None
    arguments: str


HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""What stands before the arguments of a call."""
TAIL = re.compile(r"\s*\}?\s*")
"""What stands between them and the closing tag."""


def _partly(atoms: Sequence[str]) -> re.Pattern[str]:
    """What matches the beginnings of these expressions in a row."""
    pattern = ""
    for atom in reversed(atoms):
        # Each atom may be followed by the next one, from the inside out: a(?:b(?:c)?)?.
        pattern = f"{atom}(?:{pattern})?"
    return re.compile(pattern)


_KEYS = sorted(
    {key[:size] for key in ("arguments", "parameters") for size in range(1, len(key) + 1)},
    key=len,
    reverse=True,
)
_LIST = re.compile(r"\s*(?:\[\s*)?")
_HEAD_BEGUN = _partly(
    [
        r"\s*",
        r"\{\s*",
        *'"name"',
        r"\s*",
        r":\s*",
        r'"(?P<name>(?:[^"\\]|\\.)*\\?)',
        r'(?P<end>")\s*',
        r",\s*",
        '"',
        f"(?:{'|'.join(_KEYS)})",
        r'"\s*',
        r":\s*",
    ]
)


def begins_call(text: str, known: frozenset[str]) -> bool:
    """Say whether a text is the beginning of a call, or of a list of calls.

    Args:
        text: The text, which may be cut anywhere.
        known: Names of the tools.

    Returns:
        Whether it may go on to be a call of one of them.
    """
    begun = _LIST.match(text)
    text = text[begun.end() if begun else 0 :]
    head = HEAD.match(text)
    # The head is complete, and so is the name in it.
    if head is not None:
        return json_value_or_none(head[1]) in known
    match = _HEAD_BEGUN.fullmatch(text)
    if match is None:
        return False
    # The name is complete: it must be a tool's. Else it must be the beginning of one.
    if match["end"]:
        return json_value_or_none(f'"{match["name"]}"') in known
    begin = f'"{match["name"] or ""}'
    # Compared as JSON, in which a name may hold escaped signs.
    return any(json.dumps(name, ensure_ascii=False).startswith(begin) for name in known)


class ToolCallReader:
    """Parts a text that comes in pieces into what is said and what is called.

    White space beside a call is dropped. Arguments are given out as they come, as soon as the name
    before them is known to be a tool's; from there on it is a call, complete or not. Where the
    pieces are cut makes no difference to what they add up to.

    Args:
        known: Names of the tools.
        form: Form in which calls stand, where the answer is bound to one. None: any.
    """

    def __init__(self, known: frozenset[str], form: ToolCallForm | None = None) -> None:
        self.known = known
        self.count = 0  # calls so far
        self._fit = True  # the arguments of each that has come to its end are an object
        self._tags = form is None or form.tags
        self._alone = form is None or not form.tags  # the whole answer may be a call
        self._sure = form is not None  # it is one where it begins like one
        self._held = ""  # not yet told: what may become a call, or white space before one
        self._called = False  # the last thing was a call
        self._value = JsonObjectStream()  # the arguments that are being told
        self._told = "", list[ToolCallDelta]()
        self._state: Callable[[], bool] = (
            self._begin
        )  # what to do next; says whether there is more to do

    @property
    def calls_complete(self) -> bool:
        """Whether each call so far has come to its end, with an object of arguments."""
        return self._fit and self._state != self._arguments

    def feed_text(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """Read one more piece.

        Args:
            text: The piece.

        Returns:
            What became certain to be said, and pieces of calls.
        """
        self._held += text
        # Each state reads what it can, and hands on to the next one.
        while self._state():
            pass
        told = self._told
        self._told = ("", [])
        return told

    def end_text(self, cut: bool = False) -> tuple[str, list[ToolCallDelta]]:
        """Give out what was held back, at the end of the text.

        Args:
            cut: Whether the answer ended for its length, so that the beginning of a call is not
                part of what is said. Default False.

        Returns:
            The rest of what is said, and pieces of calls.
        """
        # Inside of arguments a cut call stays a call, with what came of it.
        if cut and self._state != self._arguments:
            return self._cut()
        if self._state == self._begin:
            parsed = json_value_or_none(self._held)
            read = [_one(x, self.known) for x in (parsed if isinstance(parsed, list) else [parsed])]
            calls = [call for call in read if call is not None]
            # An answer that is an object, or a list, counts as calls only if all of it is.
            if self._alone and calls and len(calls) == len(read):
                for call in calls:
                    self._call(call.name, call.arguments)
                return self.feed_text("")
        elif self._state == self._behind:
            self._held = ""
        elif self._state == self._between and self.count:
            self._held = self._held.lstrip("}], \t\r\n")
        if self._state != self._arguments:
            self._state = self._text
        text, parts = self.feed_text("")
        return text + (self._held.lstrip() if self._called else self._held), parts

    def _cut(self) -> tuple[str, list[ToolCallDelta]]:
        """What was held back of an answer that ends in the middle."""
        text = ""
        parts = list[ToolCallDelta]()
        if self._state == self._begin and json_value_or_none(self._held) is not None:
            return self.end_text()
        if self._state == self._begin and begins_call(self._held, self.known):
            self._state = self._between
            self._tags = False
            text, parts = self.feed_text("")
        inside = self._held.lstrip()
        if self._state == self._text:
            marker = bool(inside) and (OPEN.startswith(inside) or inside.startswith(OPEN))
            said = not marker or not self._may_call(inside.removeprefix(OPEN))
        else:
            said = self._state == self._begin
        if said:
            if self._called:
                text += inside
            else:
                text += self._held
        self._held = ""
        return text, parts

    def _may_call(self, inside: str) -> bool:
        """Whether what stands behind an opening tag, or a part of one, may become a call."""
        head = HEAD.match(inside)
        if head is not None:
            return json_value_or_none(head[1]) in self.known
        return inside.lstrip()[:1] in ("", "{") or OPEN.startswith(inside)

    # ---- states ----

    def _begin(self) -> bool:
        """Nothing was told yet."""
        # Whether the answer is nothing but calls shows in its first sign.
        start = self._held.lstrip()[:1]
        if not self._alone or start not in ("", "{", "["):
            self._state = self._text
        elif start and self._sure:
            self._state = self._between
        return self._state != self._begin

    def _text(self) -> bool:
        """Text, in which calls stand in tags."""
        if self._tags:
            at = self._held.find(OPEN)
        else:
            at = -1
        # No tag: all is said but what may be the beginning of one.
        if at < 0:
            self._say(self._held[: self._safe() if self._tags else None])
            return False
        self._say(self._held[:at].rstrip())
        inside = self._held.lstrip()[len(OPEN) :]
        if self._open(HEAD.match(inside), inside):
            return True
        # A head in another order, such as arguments before the name: wait for the closing tag.
        whole, closed, rest = inside.partition(CLOSE)
        if not closed:
            return False
        call = _one(json_value_or_none(whole), self.known)
        # What names no tool stays text, its tags included.
        if call is None:
            self._say(self._held[: len(self._held) - len(rest)])
        else:
            self._held = rest
            self._call(call.name, call.arguments)
        return True

    def _arguments(self) -> bool:
        """The arguments of a call."""
        size = self._value.feed_text(self._held)
        if size:
            self._told[1].append(ToolCallDelta(self.count - 1, None, self._held[:size]))
            self._held = self._held[size:]
        if not self._value.is_closed:
            return False
        self._fit = self._fit and isinstance(json_value_or_none(self._value.text), Mapping)
        if self._tags:
            self._state = self._behind
        else:
            self._state = self._between
        return True

    def _behind(self) -> bool:
        """Between the arguments of a call and its closing tag."""
        between = TAIL.match(self._held)
        rest = self._held[between.end() if between else 0 :]
        # The closing tag may come in pieces, or be missing.
        if CLOSE.startswith(rest) and rest != CLOSE:
            return False
        self._held = rest.removeprefix(CLOSE)
        self._state = self._text
        return True

    def _between(self) -> bool:
        """Around the calls of an answer that is nothing else."""
        return self._open(HEAD.search(self._held), self._held)

    # ---- what they do ----

    def _open(self, head: re.Match[str] | None, text: str) -> bool:
        """Begin a call behind its head, if it is one."""
        if head is None:
            name = None
        else:
            name = json_value_or_none(head[1])
        if head is None or not isinstance(name, str) or name not in self.known:
            return False
        self._held, self._value, self._state = (
            text[head.end() :],
            JsonObjectStream(),
            self._arguments,
        )
        self._call(name, "")
        return True

    def _call(self, name: str, arguments: str) -> None:
        self._told[1].append(ToolCallDelta(self.count, name, arguments))
        self.count = self.count + 1
        self._called = True

    def _say(self, text: str) -> None:
        """Tell a beginning of what is held."""
        self._held = self._held[len(text) :]
        if self._called:
            text = text.lstrip()
        if text:
            self._called = False
        self._told = self._told[0] + text, self._told[1]

    def _safe(self) -> int:
        """Where the end of what is held begins that may become part of a call, or white space before one."""
        text = self._held
        # The longest end that is a beginning of the opening tag.
        for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
            if OPEN.startswith(text[-size:]):
                text = text[:-size]
                break
        return len(text.rstrip())


class JsonObjectStream:
    """A JSON object that comes in pieces, up to the brace that closes it.

    Attributes:
        text: What came of it so far.
    """

    def __init__(self) -> None:
        self.text = ""
        self._depth = 0
        self._quoted = False
        self._escaped = False

    @property
    def is_closed(self) -> bool:
        return bool(self.text) and not self._depth

    def feed_text(self, text: str) -> int:
        """Read one more piece.

        Args:
            text: The piece.

        Returns:
            How many of its characters are the object's.
        """
        at = 0
        # Brackets count outside of strings only; a backslash takes the next sign out of the count.
        while at < len(text) and not (at and not self._depth):
            char = text[at]
            at += 1
            if self._quoted:
                self._quoted = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            else:
                self._quoted = char == '"'
                self._depth += (char in "{[") - (char in "}]")
        self.text += text[:at]
        return at


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The names of the functions of these tools, as OpenAI's interface has them or bare."""
    functions = [tool.get("function", tool) for tool in tools]
    names = [f.get("name") for f in functions if isinstance(f, Mapping)]
    return frozenset(name for name in names if isinstance(name, str))


def read_calls(
    text: str, known: frozenset[str], form: ToolCallForm | None = None, cut: bool = False
) -> tuple[str, list[ToolCall], bool]:
    """Find what a complete text says and calls.

    Args:
        text: The text.
        known: Names of the tools.
        form: Form in which calls stand, where the answer is bound to one. None: any.
        cut: Whether it ended for its length. Default False.

    Returns:
        What it says, its calls, and whether all of these are complete.
    """
    reader = ToolCallReader(known, form)
    words, parts = reader.feed_text(text)
    rest, more = reader.end_text(cut)
    return words + rest, join_call_deltas([*parts, *more]), reader.calls_complete


def join_call_deltas(parts: Sequence[ToolCallDelta]) -> list[ToolCall]:
    """Put pieces of calls together.

    Args:
        parts: The pieces, in order.

    Returns:
        The calls.
    """
    out = list[ToolCall]()
    for part in parts:
        if part.name is not None:
            out.append(ToolCall(part.name, part.arguments))
        else:
            out[-1] = replace(out[-1], arguments=out[-1].arguments + part.arguments)
    return out


def _one(value: Any, known: frozenset[str]) -> ToolCall | None:
    """A call of a known tool, None where it is none."""
    if isinstance(value, Mapping):
        name = value.get("name")
    else:
        name = None
    if not isinstance(name, str) or name not in known:
        return None
    # Models differ in the word for them, and a call without arguments may leave them out.
    arguments = value.get("arguments", value.get("parameters", {}))
    # OpenAI's interface has them as JSON inside of a string, and some models write them so.
    if isinstance(arguments, str):
        arguments = json_value_or_none(arguments)
    if isinstance(arguments, Mapping):
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
    return None
