"""Chat templates: Jinja with the names that Hugging Face templates expect, in a sandbox and in a
process of its own.

A template is a program that comes with a checkpoint. Jinja's sandbox keeps it from Python's
insides, but not from using up time and memory: one filter can write a gigabyte inside a single C
call, a deeply nested expression takes Python's own compiler down, and no check of the source tells
such a template from an honest one. So all of them run in one long-lived worker, whose limits the
system enforces (`polydec.base.subprocess_worker`): what goes too far ends the worker, never this process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polydec.base.errors import PolydecError, RequestError
from polydec.base.subprocess_worker import SubprocessLimits, SubprocessWorker
from polydec.models.formats.edge import error_sentence

MEMORY = 512 << 20
"""Bytes of address space that a template may use, the worker's own included."""
SECONDS = 2.0
"""Of computing, for one rendering."""
MOST = 16 << 20
"""Characters of a rendered chat, and of its messages as JSON."""


# One worker for all templates, started when the first one is rendered.
_WORKER = SubprocessWorker(
    Path(__file__).with_name("chat_template_worker.py"),
    SubprocessLimits(MEMORY, SECONDS, answer=8 * MOST),
    "a chat template",
)


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, compiled when it is first used.

    Attributes:
        source: The template's text.
    """

    source: str

    def render(self, values: Mapping[str, Any]) -> str:
        """The text that the template makes.

        Args:
            values: Names that the template may use; numbers, texts, lists and dicts as JSON has
                them.

        Returns:
            The text.

        Raises:
            RequestError: The template is malformed, refuses the messages, or goes beyond the limits
                above.
        """
        try:
            question = {"source": self.source, "values": dict(values), "most": MOST}
            # JSON both ways: nothing that a template returns is unpickled.
            request = json.dumps(question).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as e:
            raise RequestError(
                error_sentence(f"the chat's messages and names must be what JSON can hold: {e}")
            ) from None
        if len(request) > MOST:
            raise RequestError(
                f"the chat has {len(request)} bytes with its template: {MOST} are legal"
            )
        try:
            answer = _WORKER.ask_worker(request)
        # The worker died or ran out of time: to the caller the template refuses.
        except PolydecError as e:
            answer = {"error": str(e)}
        if "error" in answer:
            raise RequestError(
                error_sentence(f"the chat template refuses these messages: {answer['error']}")
            )
        return answer["text"]
