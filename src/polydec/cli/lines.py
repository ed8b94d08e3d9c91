"""What a line of a file of prompts may hold."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from polydec.record import Record


class Line(Record):
    """A line of prompts. prompt: text, chat messages or token ids."""

    category: str | int | None = None
    prompt: str | list[Any] | None = None
    turns: Annotated[list[Any], Field(min_length=1)] | None = None
    text: str | None = None


class Message(Record):
    """A message of a chat."""

    role: str
    content: str
