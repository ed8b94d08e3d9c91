"""The thinking of an answer over HTTP: the fields that ask for it and bound it, and how a stream is parted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polydec.api import LoadedModel
from polydec.base.options import short_repr
from polydec.models.formats.thinking_marks import Segment, ThinkingReader, ThinkingSegmentKind
from polydec.request.fields import THOUGHT as MOST
from polydec.serve.body import RequestBody
from polydec.serve.errors import RefusalError

FORMATS = {"none": "none", "auto": "auto", "deepseek": "auto"}
"""llama.cpp's words for what becomes of the thinking, and ours."""

BUDGETS = (
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "thinking_token_budget",
)
"""What engines call the tokens that a model may think at most; OpenRouter has it in `reasoning`, as `max_tokens`."""

NOTHING = -1
"""What llama.cpp writes for no bound."""


@dataclass(frozen=True)
class ReasoningFields:
    """What a request says of the thinking.

    Attributes:
        format: Field of an Ask: whether thinking is parted from the answer.
        budget: Field of an Ask: tokens of thinking at most. None: no bound.
        told: Whether the thinking is sent to the client.
    """

    format: str
    budget: int | None
    told: bool

    @property
    def fields(self) -> dict[str, Any]:
        return {"reasoning_format": self.format, "reasoning_budget": self.budget}


def read_reasoning(body: RequestBody) -> ReasoningFields:
    """Read what a request says of the thinking.

    Args:
        body: Body of the request, from which the fields are taken.

    Returns:
        The fields.

    Raises:
        RefusalError: A field is malformed.
    """
    form = body.take_field("reasoning_format", "auto")
    if not isinstance(form, str) or form not in FORMATS:
        raise RefusalError(
            f"reasoning_format is {short_repr(form)}: it must be {', '.join(FORMATS)}",
            param="reasoning_format",
        )
    return ReasoningFields(
        FORMATS[form], read_budget(body), body.boolean_field("include_reasoning", True)
    )


def read_budget(body: RequestBody) -> int | None:
    """Read the most tokens of thinking, by any of the field's names.

    Args:
        body: Body of the request, from which the fields are taken.

    Returns:
        The tokens. None: no bound.

    Raises:
        RefusalError: Two of the names differ, or a value is out of its range.
    """
    given = {name: value for name in BUDGETS if (value := body.take_field(name)) is not None}
    # Another reader takes this field, for its effort.
    more = body.peek_field("reasoning")
    if isinstance(more, Mapping) and more.get("max_tokens") is not None:
        given["reasoning.max_tokens"] = more["max_tokens"]
    bounds = set[int | None]()
    for name, value in given.items():
        field = name.partition(".")[0]
        if type(value) is not int or not NOTHING <= value <= MOST:
            raise RefusalError(
                f"{name} is {short_repr(value)}: it must be a whole number in 0 to {MOST}, or {NOTHING} for no bound",
                param=field,
            )
        bounds.add(None if value == NOTHING else value)
    if len(bounds) > 1:
        raise RefusalError(
            f"{' and '.join(given)} are both given and differ: give one of them",
            param=next(iter(given)).partition(".")[0],
        )
    return next(iter(bounds), None)


def may_think(model: LoadedModel, form: str) -> bool:
    """Say whether thinking may be parted from an answer.

    Args:
        model: The model that answers.
        form: The request's reasoning format.

    Returns:
        True where the format is not ``none`` and the model has marks of thinking.
    """
    return form != "none" and model.checkpoint.text.thinking_marks is not None


class ThoughtStream:
    """Parts an answer that comes in pieces into what is thought and what is said.

    Args:
        reader: Reads the marks of thinking. None: nothing is parted.
    """

    def __init__(self, reader: ThinkingReader | None) -> None:
        self._reader = reader
        if reader is None:
            self._state = None
        else:
            self._state = reader.start_state()

    def feed_text(self, text: str, finish_reason: str | None) -> tuple[str, str]:
        """Read one more piece.

        Args:
            text: The piece.
            finish_reason: Why the answer ended, with its last piece; else None.

        Returns:
            What became certain to be thought, and what became certain to be said.
        """
        if self._reader is None or self._state is None:
            return "", text
        self._state, segments = self._reader.read_piece(self._state, text)
        # What was held back as the beginning of a mark is text now.
        if finish_reason is not None:
            segments += self._reader.end_text(self._state, cut=finish_reason != "stop")
        return _joined(segments, ThinkingSegmentKind.THINKING), _joined(
            segments, ThinkingSegmentKind.ANSWER
        )


def _joined(segments: list[Segment], wanted: ThinkingSegmentKind) -> str:
    return "".join(text for kind, text in segments if kind is wanted)
