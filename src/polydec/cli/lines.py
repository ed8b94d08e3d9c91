"""What a message in a file of prompts holds."""

from __future__ import annotations

from polydec.base.outside_records import StrictRecord


class ChatMessageRecord(StrictRecord):
    """A message of a chat."""

    role: str
    content: str
