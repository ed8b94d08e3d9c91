"""What a message in a file of prompts holds."""

from __future__ import annotations

from polydec.base.record import Record


class Message(Record):
    """A message of a chat."""

    role: str
    content: str
