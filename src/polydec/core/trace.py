"""What happened, as data: events, their JSON, and the replay of edits into a text."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

from polydec.core.types import Edit


@dataclass(frozen=True)
class Opened:
    """A choice of a request begins."""
    choice: int
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Proposed:
    """A draft as it is fed: node 0 is the root."""
    choice: int
    position: int
    token: tuple[int, ...]
    parent: tuple[int, ...]


@dataclass(frozen=True)
class Verified:
    """Which nodes were accepted, and the token after them."""
    choice: int
    position: int
    path: tuple[int, ...]
    bonus: int


@dataclass(frozen=True)
class Edited:
    """Tokens are final. `pieces[i]` is the text that write i made certain; the first `accepted` ones were drafted."""
    choice: int
    edit: Edit
    pieces: tuple[str, ...]
    accepted: int


@dataclass(frozen=True)
class Finished:
    choice: int
    finish_reason: str


Event = Opened | Proposed | Verified | Edited | Finished
Observer = Callable[[Event], None]
"""One that has `kinds` need not be told of other events."""
_KINDS: dict[str, type[Event]] = {c.__name__: c for c in (Opened, Proposed, Verified, Edited, Finished)}


def ignore(event: Event) -> None:
    """The observer of those who do not watch."""


def to_json(event: Event) -> dict[str, Any]:
    """A JSON object, one a line in a trace file."""
    return {"event": type(event).__name__, **asdict(event)}


def _tuples(x: Any) -> Any:
    return tuple(_tuples(y) for y in x) if isinstance(x, list) else x      # pyright: ignore[reportUnknownVariableType]


def from_json(line: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote. Raises ValueError for an unknown kind."""
    kind = _KINDS.get(line.get("event", ""))
    if kind is None:
        raise ValueError(f"trace event {line.get('event')!r} is unknown: it must be one of {', '.join(_KINDS)}")
    fields = {k: _tuples(line[k]) for k in get_type_hints(kind) if k != "edit"}
    if "edit" in line:
        fields["edit"] = Edit(**{k: _tuples(v) for k, v in line["edit"].items()})
    return kind(**fields)


def replay(prompt: Sequence[int], edits: Iterable[Edit]) -> list[int]:
    """The generated tokens that a run's edits add up to."""
    text = list(prompt)
    for edit in edits:
        for at in sorted(edit.erase, reverse=True):
            del text[at]
        for at, token in edit.insert:
            text.insert(at, token)
        for at, token in edit.write:
            if at == len(text):
                text.append(token)
            else:
                text[at] = token
    return text[len(prompt):]
