"""Events of the draft-and-verify loops: made for observers that want them, and for nobody else."""

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.loop import pearl, speculative
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent

LOOPS = {"draft-model": speculative, "pearl": pearl}


class Chosen:
    """An observer of one kind of event."""

    def __init__(self, kind):
        self.kinds = (kind,)
        self.seen = []

    def __call__(self, event):
        self.seen.append(event)


def decode(method, **on):
    decoder, _ = build(method, toy_law(1, 5, eos=-1), toy_law(2, 5, eos=-1, cost=0.1))
    return run_coroutines([answer_one(decoder, Request((0, 1, 0), 12), **on)])[0]


@pytest.mark.parametrize("method", LOOPS)
def test_without_an_observer_no_event_is_made(method, monkeypatch):
    want = decode(method).token_ids

    def refuse(*fields):
        raise AssertionError("an event was made that nobody reads")

    for kind in (ProposedEvent, VerifiedEvent):
        monkeypatch.setattr(LOOPS[method], kind.__name__, refuse)
    assert decode(method).token_ids == want


@pytest.mark.parametrize("method", LOOPS)
@pytest.mark.parametrize(
    ("kind", "other"), [(ProposedEvent, VerifiedEvent), (VerifiedEvent, ProposedEvent)]
)
def test_an_observer_of_one_kind_is_spared_the_other(method, kind, other):
    every = []
    want = decode(method, on=every.append)
    one = Chosen(kind)
    assert decode(method, on=one).token_ids == want.token_ids
    told = [event for event in one.seen if isinstance(event, (kind, other))]
    assert told == [event for event in every if isinstance(event, kind)]
    assert told
