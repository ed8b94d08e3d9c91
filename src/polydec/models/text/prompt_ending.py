"""How the text of a chat ends: with what opens the assistant's next turn, inside of its final
message, or after that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polydec.base.errors import RequestError
from polydec.models.text import message_forms

Message = Mapping[str, Any]

OPENED = "reply"
CONTINUED = "continue"
CLOSED = "none"
"""What a chat may end with."""

TEXT_END = "end0of7text"
"""Stands behind the final message where a template renders it, so that it is found again; no
template writes it by itself."""


def mark_final_message(messages: Sequence[Message], ending: str) -> list[Message]:
    """Prepare messages for the template: a final one that is to be continued gets a mark at its
    end.

    Args:
        messages: The chat, at least one message.
        ending: What it ends with: `OPENED`, `CONTINUED` or `CLOSED`.

    Returns:
        The messages for the template.

    Raises:
        RequestError: The final message cannot be continued.
    """
    if ending != CONTINUED:
        return list(messages)
    *before, last = messages
    if last["role"] != "assistant":
        raise RequestError(
            f"prompt_ending is 'continue' and the final message is of role {last['role']!r}: it continues one of the "
            "assistant, so leave it out"
        )
    # A call is closed by the template, so no text can go on from it.
    if last.get("tool_calls"):
        raise RequestError(
            "prompt_ending is 'continue' and the final message has tool_calls: it continues a text, so leave it out"
        )
    content = message_forms.joined_text(last["content"])
    if not isinstance(content, str):
        raise RequestError("prompt_ending is 'continue' and the final message is no text")
    # The template may trim the message or write after it: the mark says where its text really ends.
    return [*before, {**last, "content": content + TEXT_END}]


def end_rendered_chat(shown: str, ending: str) -> str:
    """Cut a rendered chat at the mark, where its final message is to be continued.

    Args:
        shown: What the template made of the messages.
        ending: What it ends with: `OPENED`, `CONTINUED` or `CLOSED`.

    Returns:
        The prompt's text.

    Raises:
        RequestError: The template does not show the final message.
    """
    if ending != CONTINUED:
        return shown
    # What the template writes after the final message, such as the end of a turn, goes.
    at = shown.rfind(TEXT_END)
    if at < 0:
        raise RequestError(
            "prompt_ending is 'continue': the chat template does not show the final message as it stands"
        )
    return shown[:at]
