"""Open sessions can be looked at while others are opened and closed, as threads do that check requests."""

import gc

from polydec.lab.testing.toy import toy_law
from polydec.models.sessions.live_references import LiveReferences


class Opened:
    pass


def test_they_are_those_of_one_moment():
    live, first, second = LiveReferences(), Opened(), Opened()
    live.add_object(first)
    moment = iter(live)
    live.add_object(second)
    assert list(moment) == [first] and set(live) == {first, second} and len(live) == 2
    live.discard_object(first)
    live.discard_object(first)
    assert list(live) == [second]


def test_what_nobody_holds_is_not_open():
    live = LiveReferences()
    live.add_object(Opened())
    gc.collect()
    assert list(live) == [] and len(live) == 0


def test_sessions_of_a_law_are_opened_and_closed_while_others_look():
    """A WeakSet ends this with "Set changed size during iteration"."""
    law = toy_law(1, 5)
    sessions = [law.open_session((1, 2, 3)) for _ in range(3)]
    seen = []
    for session in law.live:
        law.open_session((0,)).close()
        sessions.append(law.open_session((2, 1)))
        seen.append(session)
    assert len(seen) == 3 and len(law.live) == 6
    for session in sessions:
        session.close()
    assert len(law.live) == 0
