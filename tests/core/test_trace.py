"""Events, their JSON, and replay."""

import json

import pytest

from polydec.core.trace import (
    BranchedEvent,
    EditedEvent,
    FinishedEvent,
    OpenedEvent,
    PassedEvent,
    PrunedEvent,
    ScoredEvent,
    TriedEvent,
    from_json,
    ignore_event,
    replay,
    to_json,
)
from polydec.core.types import TextEdit
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent

EVENTS = [
    OpenedEvent(0, (1, 2)),
    ProposedEvent(1, 2, (2, 5), (-1, 0)),
    ProposedEvent(1, 2, (2, 5), (-1, 0), ("a", "b")),
    ProposedEvent(1, 2, (2, 5, 3), (-1, 0, 0), probes=(2,)),
    VerifiedEvent(0, 2, (1,), 7),
    EditedEvent(0, TextEdit(((2, 5), (3, 7)), (1,), ((0, 4),)), (5, 7), ("a", ""), 1),
    FinishedEvent(0, "stop"),
    PassedEvent(0, "zoo:tiny", 0.0, 0.01, 3, 8, 2),
    BranchedEvent(0, 3, -1, 0),
    TriedEvent(0, 3, (5, 6), ("a", "b")),
    ScoredEvent(0, 3, -1.25),
    PrunedEvent(0, 3),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_json_there_and_back(event):
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_a_field_with_a_default_may_be_missing_in_older_files():
    line = to_json(EVENTS[1])
    del line["piece"]
    assert from_json(line) == EVENTS[1]


@pytest.mark.parametrize("line", [{"event": "Sung"}, {}])
def test_unknown_events_are_refused(line):
    with pytest.raises(ValueError, match="is unknown: it must be one of Opened, Edited"):
        from_json(line)


def test_ignore_ignores():
    assert ignore_event(EVENTS[0]) is None


def test_replay_appends_overwrites_erases_and_inserts():
    assert replay((1, 2), [TextEdit(((2, 5), (3, 6))), TextEdit(((4, 7),))]) == [5, 6, 7]
    assert replay((1, 2), [TextEdit(((2, 5), (3, 6))), TextEdit(((2, 8),))]) == [8, 6]
    assert replay((1,), [TextEdit(((1, 5), (2, 6), (3, 7))), TextEdit(erase=(1, 3))]) == [6]
    assert replay((1,), [TextEdit(((1, 5), (2, 6))), TextEdit(insert=((1, 8), (3, 9)))]) == [
        8,
        5,
        9,
        6,
    ]
    # all at once: positions of erase are the old ones, of insert and write the new ones
    assert replay(
        (1,),
        [TextEdit(((1, 5), (2, 6), (3, 7))), TextEdit(((2, 0), (4, 4)), (1, 2), ((1, 8), (2, 9)))],
    ) == [8, 0, 7, 4]


def test_a_write_beyond_the_end_leaves_a_gap_and_does_not_count_until_that_is_closed():
    assert replay((1,), [TextEdit(((5, 5),))]) == []
    assert replay((1,), [TextEdit(((5, 5),)), TextEdit(tuple((i, i) for i in range(1, 5)))]) == [
        1,
        2,
        3,
        4,
        5,
    ]
