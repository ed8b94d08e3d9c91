"""What a message in a file of prompts holds."""

from __future__ import annotations

from polydec.base.record import StrictRecord


class ChatMessageRecord(StrictRecord):
    """A message of a chat."""

    role: str
    content: str
