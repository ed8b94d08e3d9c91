"""The form in which a chat template shows messages: contents as texts or as lists of parts,
arguments of calls as objects or as JSON texts, and whether it has a place for tools.

A template does not say it. So it is tried: it renders a chat with a rare word in it, and where that
word is lost in the usual form (contents as texts, arguments as objects) and stands in the text of
the other one, it is given the other one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from polydec.base.errors import PolydecError
from polydec.models.text.chat_template import ChatTemplate

Message = Mapping[str, Any]
Names = tuple[tuple[str, str], ...]

NEEDLE = "needle7q"
"""A word that no template writes by itself."""

_TOOL: Message = {
    "type": "function",
    "function": {
        "name": NEEDLE,
        "description": "a",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string", "description": "a"}},
            "required": ["a"],
        },
    },
}
"""Something that a template might show."""


def fit_messages(
    messages: Sequence[Message], template: ChatTemplate, names: Mapping[str, str]
) -> list[Message]:
    """Messages as a template shows them.

    Args:
        messages: Each with a role, and a content that is a text or a list of parts,
            `{"type": "text", "text": …}`.
        template: The chat template.
        names: Special tokens by role, which the template may name.

    Returns:
        The same messages; contents are lists of parts, and arguments texts, where the template
        shows them in that form only.
    """
    own = tuple(sorted(names.items()))
    shown = [_with_arguments(_with_content(m, template, own), template, own) for m in messages]
    # Most templates read what was thought as `reasoning_content`; some only as `thinking`.
    if "reasoning_content" in template.source or ".thinking" not in template.source:
        return shown
    return [_with_thinking(message) for message in shown]


def _with_thinking(message: Message) -> Message:
    """A message for templates that call what was thought `thinking`."""
    if "reasoning_content" not in message:
        return message
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**rest, "thinking": message["reasoning_content"]}


def joined_text(content: Any) -> Any:
    """The text of a content; what is no list of text parts stays as it is."""
    if not isinstance(content, list) or not all(_is_text(part) for part in content):
        return content
    return "".join(part["text"] for part in content)


def shows_tools(
    usual: ChatTemplate | None, template: ChatTemplate | None, names: Mapping[str, str]
) -> bool:
    """Whether a chat with tools shows them.

    Args:
        usual: The template of chats without tools.
        template: The template of chats with tools.
        names: Special tokens by role, which the templates may name.
    """
    own = tuple(sorted(names.items()))
    asked = [{"role": "user", "content": "a"}]
    with_tools = _tried(asked, template, own, [_TOOL])
    if with_tools is None:
        return False
    without = _tried(asked, usual, own, None)
    if without is None:  # it refuses chats without tools
        return NEEDLE in with_tools
    # A template that does not show tools writes the same text with them and without.
    return with_tools != without


def _is_text(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def _with_content(message: Message, template: ChatTemplate, names: Names) -> Message:
    content = joined_text(message["content"])
    if not isinstance(content, str):  # parts that are no texts, which the template may know
        return message
    if not takes_parts(template, names, message["role"]):
        return {**message, "content": content}
    if isinstance(message["content"], list):
        return message
    return {**message, "content": _parts(content)}


def _parts(text: str) -> list[Message]:
    return [{"type": "text", "text": text}]


def _with_arguments(message: Message, template: ChatTemplate, names: Names) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(_has_object(call) for call in calls):
        return message
    if not takes_json_arguments(template, names):
        return message
    return {**message, "tool_calls": [_with_json(call) for call in calls]}


def _has_object(call: Any) -> bool:
    if isinstance(call, Mapping):
        function = call.get("function")
    else:
        function = None
    return isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping)


def _with_json(call: Message) -> Message:
    if not _has_object(call):
        return call
    function = call["function"]
    written = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": written}}


@lru_cache(256)
def takes_parts(template: ChatTemplate, names: Names, role: str) -> bool:
    """Whether a template shows the content of a role's messages as a list of parts only, not as a
    text.

    Args:
        template: The chat template.
        names: Special tokens by role, as pairs, which the template may name.
        role: Role of the messages.

    Returns:
        Whether contents must be lists of parts.
    """
    if role == "user":
        return _shown_in_parts(template, names, role, "a")
    # Other roles are tried in a chat with a user, whose content must have the right form itself.
    if takes_parts(template, names, "user"):
        user = _parts("a")
    else:
        user = "a"
    return _shown_in_parts(template, names, role, user)


def _shown_in_parts(template: ChatTemplate, names: Names, role: str, user: Any) -> bool:
    asked = {"role": "user", "content": user}

    def shown_content(content: Any) -> bool:
        message: dict[str, Any] = {"role": role, "content": content}
        # Templates refuse roles out of place: each is tried where it usually stands.
        if role == "tool":
            call = _call({"a": "a"})
            message["tool_call_id"] = call["id"]
            calling = {"role": "assistant", "content": "", "tool_calls": [call]}
            chats = [[asked, calling, message]]
        elif role == "user":
            chats = [[message]]
        elif role == "assistant":
            # Something must stand before and behind: some templates cut the last message of the
            # assistant.
            chats = [[asked, message, asked]]
        else:
            chats = [[message, asked], [asked, message]]
        return any(
            NEEDLE in (_tried(chat, template, names, tools) or "").casefold()
            for chat in chats
            # Some templates show results of tools only in a chat with tools.
            for tools in (None, [_TOOL_BESIDE])
        )

    return not shown_content(NEEDLE) and shown_content(_parts(NEEDLE))


_TOOL_BESIDE: Message = {
    "type": "function",
    "function": {**_TOOL["function"], "name": "a"},
}
"""A tool of a chat in which something else is looked for."""


def _call(arguments: Any) -> Message:
    return {
        "id": "call12345",
        "type": "function",
        "function": {"name": "a", "arguments": arguments},
    }


@lru_cache(256)
def takes_json_arguments(template: ChatTemplate, names: Names) -> bool:
    """Whether a template shows the arguments of calls as a JSON text only.

    That is, where it is given an object it shows something else, or nothing at all.

    Args:
        template: The chat template.
        names: Special tokens by role, as pairs, which the template may name.

    Returns:
        Whether arguments must be JSON texts.
    """
    value = {NEEDLE: "a"}
    if takes_parts(template, names, "user"):
        asked = _parts("a")
    else:
        asked = "a"

    def shown_arguments(arguments: Any) -> str:
        chat = [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": "", "tool_calls": [_call(arguments)]},
        ]
        tried = (_tried(chat, template, names, tools) for tools in (None, [_TOOL_BESIDE]))
        return next((text for text in tried if text is not None), "")

    # An object that shows up as Python's own repr is not shown as JSON.
    as_object = shown_arguments(value)
    if NEEDLE in as_object and repr(value) not in as_object:
        return False
    return json.dumps(value) in shown_arguments(json.dumps(value))


def _tried(
    messages: Iterable[Message],
    template: ChatTemplate | None,
    names: Names,
    tools: Sequence[Message] | None,
) -> str | None:
    """What a template makes of a chat; None: it refuses it."""
    if template is None:
        return None
    values = {
        "documents": None,
        **dict(names),
        "messages": list(messages),
        "tools": tools,
        "add_generation_prompt": True,
    }
    try:
        return template.render(values)
    except PolydecError:
        return None
