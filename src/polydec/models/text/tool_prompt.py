"""What a model reads of tools where its chat template has no place for them: a text, and calls and
results as texts.

The form is the one that most templates with such a place use, so whoever reads answers need not
know which of the two it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from polydec.base.errors import PolydecError
from polydec.models.text.message_forms import joined_text
from polydec.models.text.tokenizer import Tokenizer

PROMPT = """You can call functions. They are, one a line, with the JSON schema of their parameters:
{functions}
To call one, write its name and its arguments as JSON, in this form, once for each call:
<tool_call>
{{"name": "a function", "arguments": {{"a parameter": "its value"}}}}
</tool_call>
What it gave follows between <tool_response> and </tool_response>. Where no function helps, just answer."""
"""The default prompt."""

Message = Mapping[str, Any]


def render_tool_chat(
    text: Tokenizer, messages: Sequence[Message], tools: Sequence[Message], **values: Any
) -> str:
    """The text of a chat with tools, where the template has no place for them.

    The prompt stands at the end of the system message; in front of the first message of a user
    where the template takes no system message or does not show it.

    Args:
        text: The tokenizer with the template.
        messages: The chat.
        tools: The tools, as OpenAI's interface has them.
        values: Further names that the template may know.

    Returns:
        The text.

    Raises:
        RequestError: The template refuses the messages in either form.
    """
    told = tool_prompt_text(tools)
    spoken = as_texts(messages)
    # The prompt joins a system message that is there; two of them are more than many templates
    # take.
    own = [m["content"] for m in spoken if m["role"] == "system"][:1]
    system = {"role": "system", "content": "\n\n".join([*(x for x in own if x), told])}
    rest = list(spoken)
    if own:
        rest.remove(next(m for m in spoken if m["role"] == "system"))
    try:
        shown = text.render_chat([system, *rest], **values)
        # Some templates take a system message and leave it out.
        if told in shown:
            return shown
    except PolydecError:
        if not any(m["role"] == "user" for m in spoken):
            raise
    first = next((at for at, m in enumerate(spoken) if m["role"] == "user"), 0)
    asked = {**spoken[first], "content": f"{told}\n\n{spoken[first]['content']}"}
    return text.render_chat([*spoken[:first], asked, *spoken[first + 1 :]], **values)


def with_earlier_calls(text: Tokenizer, messages: Sequence[Message], **values: Any) -> str:
    """The text of a chat without tools, whose messages may hold calls and what they gave.

    They stand as the template shows them, else as texts.

    Args:
        text: The tokenizer with the template.
        messages: The chat.
        values: Further names that the template may know.

    Returns:
        The text.

    Raises:
        RequestError: The template refuses the messages.
    """
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    if not calls and all(message["role"] != "tool" for message in messages):
        return text.render_chat(messages, **values)
    try:
        # Tried with the template's own form of calls; whether it showed them is seen in the text.
        if text.shows_tools:
            shown = text.render_chat(messages, **values)
        else:
            shown = ""
    except PolydecError:  # it takes calls beside tools only
        shown = ""
    # Shown is what can be found in the text: every name that was called, and every result.
    names = [str(call.get("function", call).get("name")) for call in calls]
    gave = [str(joined_text(m["content"])).strip() for m in messages if m["role"] == "tool"]
    if shown and all(x in shown for x in names) and all(_is_shown(x, shown) for x in gave):
        return shown
    return text.render_chat(as_texts(messages), **values)


def _is_shown(gave: str, shown: str) -> bool:
    """Whether what a call gave stands in a chat's text, as it is or as JSON."""
    return gave in shown or json.dumps(gave, ensure_ascii=False)[1:-1] in shown


def tool_prompt_text(tools: Sequence[Message]) -> str:
    """What the model is told of these tools."""
    listed = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    return PROMPT.format(functions="\n".join(listed))


def as_texts(messages: Sequence[Message]) -> list[Message]:
    """Messages with calls, and with what they gave, as messages of an assistant and a user. What
    several calls gave is one message."""
    out = list[Message]()
    after_result = False
    for given in messages:
        message = {**given, "content": joined_text(given["content"])}
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            # Many templates demand that roles take turns.
            if after_result:
                out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n{result}"}
            else:
                out.append({"role": "user", "content": result})
            after_result = True
            continue
        after_result = False
        # Calls become text of the message, as the template has no place for them.
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        if calls:
            more = {"content": "\n".join(x for x in (message["content"], *calls) if x)}
        else:
            more = {}
        out.append({k: v for k, v in {**message, **more}.items() if k != "tool_calls"})
    return out


def _call(call: Message) -> str:
    function = call.get("function", call)
    written = json.dumps(
        {"name": function.get("name"), "arguments": function.get("arguments")}, ensure_ascii=False
    )
    return f"<tool_call>\n{written}\n</tool_call>"
