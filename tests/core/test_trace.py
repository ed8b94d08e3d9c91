"""Events, their JSON, and replay."""

import json

import pytest

from polydec.core.trace import (
    Branched,
    Edited,
    Finished,
    Opened,
    Passed,
    Pruned,
    Scored,
    Tried,
    from_json,
    ignore,
    replay,
    to_json,
)
from polydec.core.types import Edit
from polydec.methods.speculative.loop.events import Proposed, Verified

EVENTS = [
    Opened(0, (1, 2)),
    Proposed(1, 2, (2, 5), (-1, 0)),
    Proposed(1, 2, (2, 5), (-1, 0), ("a", "b")),
    Proposed(1, 2, (2, 5, 3), (-1, 0, 0), probes=(2,)),
    Verified(0, 2, (1,), 7),
    Edited(0, Edit(((2, 5), (3, 7)), (1,), ((0, 4),)), (5, 7), ("a", ""), 1),
    Finished(0, "stop"),
    Passed(0, "zoo:tiny", 0.0, 0.01, 3, 8, 2),
    Branched(0, 3, -1, 0),
    Tried(0, 3, (5, 6), ("a", "b")),
    Scored(0, 3, -1.25),
    Pruned(0, 3),
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
    assert ignore(EVENTS[0]) is None


def test_replay_appends_overwrites_erases_and_inserts():
    assert replay((1, 2), [Edit(((2, 5), (3, 6))), Edit(((4, 7),))]) == [5, 6, 7]
    assert replay((1, 2), [Edit(((2, 5), (3, 6))), Edit(((2, 8),))]) == [8, 6]
    assert replay((1,), [Edit(((1, 5), (2, 6), (3, 7))), Edit(erase=(1, 3))]) == [6]
    assert replay((1,), [Edit(((1, 5), (2, 6))), Edit(insert=((1, 8), (3, 9)))]) == [8, 5, 9, 6]
    # all at once: positions of erase are the old ones, of insert and write the new ones
    assert replay(
        (1,), [Edit(((1, 5), (2, 6), (3, 7))), Edit(((2, 0), (4, 4)), (1, 2), ((1, 8), (2, 9)))]
    ) == [8, 0, 7, 4]


def test_a_write_beyond_the_end_leaves_a_gap_and_does_not_count_until_that_is_closed():
    assert replay((1,), [Edit(((5, 5),))]) == []
    assert replay((1,), [Edit(((5, 5),)), Edit(tuple((i, i) for i in range(1, 5)))]) == [
        1,
        2,
        3,
        4,
        5,
    ]
