"""What happened, as data: events, their JSON, and the replay of edits into a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

from polydec.base.errors import RequestError
from polydec.core.types import TextEdit

_KINDS: dict[str, type[TraceEvent]] = {}
"""Every kind of event by its name; a family adds its own by writing a subclass of TraceEvent."""


def event_name(kind: type[TraceEvent]) -> str:
    """What a trace file calls events of a class: its name without `Event`."""
    return kind.__name__.removesuffix("Event")


@dataclass(frozen=True)
class TraceEvent:
    """Something that happened to one choice of a request."""

    choice: int

    def __init_subclass__(cls) -> None:
        # Whoever defines an event makes it known to readers of trace files.
        _KINDS[event_name(cls)] = cls


@dataclass(frozen=True)
class OpenedEvent(TraceEvent):
    """A choice of a request begins."""

    prompt: tuple[int, ...]


@dataclass(frozen=True)
class EditedEvent(TraceEvent):
    """The text was edited.

    Attributes:
        edit: The change.
        tokens: Tokens that became final by it; they follow what was final before.
        pieces: For each of these tokens the text that it made certain.
        accepted: How many of them, from the first, were drafted.
    """

    edit: TextEdit
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    accepted: int


@dataclass(frozen=True)
class FinishedEvent(TraceEvent):
    """A choice is complete."""

    finish_reason: str


@dataclass(frozen=True)
class PassedEvent(TraceEvent):
    """A pass that the request took part in.

    Attributes:
        model: Name of the model.
        start: Seconds after the first pass in the trace.
        seconds: How long it took.
        positions: Positions fed for this request.
        of: Positions fed for all requests.
        queries: How many queries were answered together.
    """

    model: str
    start: float
    seconds: float
    positions: int
    of: int
    queries: int


@dataclass(frozen=True)
class BranchedEvent(TraceEvent):
    """A search begins a text, a branch, where another one stands.

    A search that writes several answers is listed under the first one. No event of a branch follows
    the end of its answer.

    Attributes:
        branch: Number of the new branch.
        parent: Number of the branch that it leaves; -1 is the prompt.
        at: How many tokens both share.
    """

    branch: int
    parent: int
    at: int


@dataclass(frozen=True)
class TriedEvent(TraceEvent):
    """Tokens were written to a branch.

    Attributes:
        branch: Number of the branch.
        tokens: The tokens.
        pieces: For each of them the text that it made certain.
    """

    branch: int
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class ScoredEvent(TraceEvent):
    """What a branch is ranked by as it stands: its likelihood, or what a reward says of it."""

    branch: int
    score: float


@dataclass(frozen=True)
class PrunedEvent(TraceEvent):
    """A branch was given up: nothing goes on from it."""

    branch: int


VERSION = 5
"""Of the layout of trace files. An opening's line has it beside the event, under "trace", with
what is known of the model; files of version 1 have nothing there, those of version 2 tell nothing
of branches, those of version 3 are of one request: in later ones a line may say under "request"
which one it is of, from 0. Those of version 4 tell neither which tokens the rules of a request
forced nor what a canvas put back.
"""

Observer = Callable[[TraceEvent], None]
"""One that has `kinds` need not be told of other events."""


def ignore_event(event: TraceEvent) -> None:
    """The observer of those who do not watch."""


def to_json(event: TraceEvent) -> dict[str, Any]:
    """A JSON object, one a line in a trace file."""
    return {"event": event_name(type(event)), **asdict(event)}


def _tuples(x: Any) -> Any:
    return tuple(_tuples(y) for y in x) if isinstance(x, list) else x  # pyright: ignore[reportUnknownVariableType]


def from_json(line: Mapping[str, Any]) -> TraceEvent:
    """The event that `to_json` wrote. Raises RequestError for an unknown kind."""
    kind = _KINDS.get(line.get("event", ""))
    if kind is None:
        raise RequestError(
            f"trace event {line.get('event')!r} is unknown: it must be one of {', '.join(_KINDS)}"
        )
    # Fields that an older version of the layout does not have take their defaults.
    fields = {k: _tuples(line[k]) for k in get_type_hints(kind) if k != "edit" and k in line}
    if "edit" in line:
        fields["edit"] = TextEdit(**{k: _tuples(v) for k, v in line["edit"].items()})
    return kind(**fields)


def replay(prompt: Sequence[int], edits: Iterable[TextEdit]) -> list[int]:
    """Rebuild an answer from the edits of a run.

    Args:
        prompt: Token ids of the prompt, from whose start the edits count.
        edits: The edits in the order in which they happened.

    Returns:
        Token ids behind the prompt, up to the first gap.
    """
    text: list[int | None] = list(prompt)
    for edit in edits:
        apply_edit(edit, text)
    out: list[int] = []
    for token in text[len(prompt) :]:
        if token is None:
            break
        out.append(token)
    return out


def apply_edit(edit: TextEdit, text: list[int | None], start: int = 0) -> None:
    """Apply an edit to a text in place. A write beyond the end leaves gaps (None) before it.

    Args:
        edit: The change; its positions count from the prompt's start.
        text: Token ids to change, None for a gap.
        start: Position of the first entry of `text`. Default 0.
    """
    # From the end, so that the positions before an erased token stay valid.
    for at in sorted(edit.erase, reverse=True):
        del text[at - start]
    # In ascending order: each position is one of the longer text.
    for at, token in edit.insert:
        text.insert(at - start, token)
    for at, token in edit.write:
        text += [None] * (at - start + 1 - len(text))
        text[at - start] = token
