"""What a chat template is told beside messages: `chat_template_kwargs`, and `reasoning_effort` where it knows of thinking."""

from __future__ import annotations

import json
import re
from typing import Any

from polydec.api import LoadedModel
from polydec.base.options import short_repr
from polydec.models.text import prompt_ending
from polydec.request.thinking import SWITCHES
from polydec.serve.body import RequestBody
from polydec.serve.errors import RefusalError

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Names that have fields of their own."""
LARGEST = 1 << 14
"""Characters of `chat_template_kwargs` as JSON."""
LEAST = len('"a": 1, ') - 1
"""Of a name with its value; one of them may be empty."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
"""OpenAI's words for how long a model thinks."""
FIELDS = ("chat_template_kwargs", "reasoning_effort", "reasoning", "reasoning_format")


def template_values(body: RequestBody, model: LoadedModel) -> dict[str, Any]:
    """Read the names that a request gives the chat template.

    Args:
        body: Body of the request, from which the fields are taken.
        model: The model that answers.

    Returns:
        Values by name.

    Raises:
        RefusalError: The template does not know a name, so that nothing is dropped in silence, or
            two fields contradict one another.
    """
    # A copy, since the effort's values join them.
    values = dict(body.mapping_field("chat_template_kwargs"))
    # nothing else runs while a value is written: many are not looked at, as each name takes that much at least
    size = LEAST * len(values)
    if size <= LARGEST:
        size = len(json.dumps(values))
    if size > LARGEST:
        raise RefusalError(
            f"chat_template_kwargs has at least {size} characters: it may have {LARGEST}",
            param="chat_template_kwargs",
        )
    for name in values:
        _check(name, model)
    # Both forms end in one word.
    effort = _effort(body)
    if effort is None:
        told = {}
    else:
        told = _thinking(effort, model)
    # An effort and a switch of the template may say the same thing, but not two.
    for name, value in told.items():
        if values.get(name, value) != value:
            raise RefusalError(
                f"reasoning_effort is {short_repr(effort)} and chat_template_kwargs has {name} {short_repr(values[name])}: "
                "give one of them",
                param="reasoning_effort",
            )
    return {**told, **values}


def chat_ending(body: RequestBody) -> str:
    """Read what the text of a chat ends with (models/text/prompt_ending.py).

    Args:
        body: Body of the request, from which the fields are taken.

    Returns:
        One of the endings.

    Raises:
        RefusalError: Two fields contradict one another.
    """
    continued = body.boolean_field("continue_final_message")
    # A turn is opened unless one is continued.
    opened = body.boolean_field("add_generation_prompt", not continued)
    if continued and opened:
        raise RefusalError(
            "continue_final_message and add_generation_prompt are both true: a final message that is continued is followed by "
            "no other turn, so set one of them to false",
            param="continue_final_message",
        )
    if continued:
        return prompt_ending.CONTINUED
    if opened:
        return prompt_ending.OPENED
    return prompt_ending.CLOSED


def no_ending(body: RequestBody) -> None:
    """Refuse what says how the text of a chat ends, where there is none that could end otherwise."""
    for name, usual in (("continue_final_message", False), ("add_generation_prompt", True)):
        value = body.take_field(name, usual)
        # The usual value says what happens anyway, and is let pass.
        if value is not usual:
            raise RefusalError(
                f"{name} is {short_repr(value)}: it is for /v1/chat/completions and /tokenize",
                param=name,
            )


def no_template(body: RequestBody) -> None:
    """Refuse what only a template could be told, where there is none."""
    no_ending(body)
    for name in FIELDS:
        value = body.take_field(name)
        if value not in (None, {}, "none"):
            raise RefusalError(
                f"{name} is {short_repr(value)}: it is for chats, and a completion has no chat template",
                param=name,
            )


def _check(name: str, model: LoadedModel) -> None:
    text = model.checkpoint.text
    # A request could otherwise put words into the template's own variables.
    if name in RESERVED or name in text.names:
        raise RefusalError(
            f"chat_template_kwargs has {short_repr(name)}: that is not for requests to say here",
            param="chat_template_kwargs",
        )
    if not _knows(model, name):
        raise RefusalError(
            f"chat_template_kwargs has {short_repr(name)}: the chat template of this model does not speak of that name",
            param="chat_template_kwargs",
        )


def _effort(body: RequestBody) -> str | None:
    """`reasoning_effort`, or `effort` in OpenAI's `reasoning`."""
    more = body.mapping_field("reasoning")
    legal = ("effort", "max_tokens")
    other = next((k for k, v in more.items() if k not in legal and v is not None), None)
    if other is not None:
        raise RefusalError(
            f"reasoning has {short_repr(other)}: it holds an effort and max_tokens only, since nothing of what a model "
            "thinks is summed up here",
            param="reasoning",
        )
    # Put under the older name, which is refused where both are given.
    if more.get("effort") is not None:
        body.put_field("reasoning_effort", more["effort"])
    effort = body.take_field("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise RefusalError(
            f"reasoning_effort is {short_repr(effort)}: it must be {', '.join(EFFORTS)}",
            param="reasoning_effort",
        )
    return effort


def _thinking(effort: str, model: LoadedModel) -> dict[str, Any]:
    """What an effort means to the template: its own word where it knows that, and its switch, which
    is off for "none".
    """
    told = dict[str, Any]()
    if _knows(model, "reasoning_effort"):
        told["reasoning_effort"] = effort
    # A template may have a switch only: then every effort but "none" turns it on.
    told |= {name: effort != "none" for name in SWITCHES if _knows(model, name)}
    if not told and effort != "none":
        raise RefusalError(
            f"reasoning_effort is {short_repr(effort)}: the chat template of this model knows nothing of thinking, so leave "
            'it out or give "none"',
            param="reasoning_effort",
        )
    return told


_CODE = re.compile(r"\{[%{].*?[%}]\}", re.DOTALL)


def _knows(model: LoadedModel, name: str) -> bool:
    """Whether a name stands, as a name, in the code of the model's chat template."""
    # Only inside of {{ }} and {% %}: a word in the template's text is no name that it reads.
    named = re.compile(rf"(?<![\w.'\"]){re.escape(name)}(?![\w'\"])")
    return any(
        named.search(code)
        for template in model.checkpoint.text.chat_templates
        if template is not None
        for code in _CODE.findall(template.source)
    )
