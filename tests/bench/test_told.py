"""A record made again without its model: equal under its own setting, and as a live run under others."""

import pytest

from polydec import generate, load
from polydec.bench.told import Recorded, Round, replayed, seconds
from polydec.core.trace import Passed
from polydec.families.ar.events import Proposed, Verified
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped

PROMPT = "def mean(values):"


@pytest.fixture(scope="module")
def lm():
    return load("zoo:tiny", dtype="float32")


def live(lm, method, options):
    """The rounds of a real run, and its record."""
    events, rounds = [], []
    answer = generate(
        lm, PROMPT, raw=True, method=method, options=options, max_tokens=60, on=events.append
    )
    for event in events:
        if isinstance(event, Proposed):
            rounds.append([event.position, len(event.token) - 1])
        elif isinstance(event, Verified):
            rounds[-1].append(len(event.path))
    vocab = lm.checkpoint.lm.vocab
    one = Recorded(lm.ids(PROMPT, raw=True), answer.token_ids, vocab.size, vocab.eos)
    return [Round(*r) for r in rounds], one


SETTINGS = [
    ("prompt-lookup", {"cost_aware": False}),
    ("prompt-lookup", {"cost_aware": False, "depth": 2}),
    ("prompt-lookup", {"cost_aware": False, "depth": 6, "max_ngram": 3}),
    ("suffix-automaton", {}),
    ("draft-model", {"depth": 3}),
    ("draft-model", {"depth": 1}),
]


@pytest.mark.parametrize("method, options", SETTINGS, ids=str)
def test_a_replay_of_any_record_is_the_live_run(lm, method, options):
    """The record is of plain decoding: what is replayed was never run."""
    _, one = live(lm, "plain", {})
    run, same = live(lm, method, options)
    draft = Shaped(lm.small(), Greedy()) if method == "draft-model" else None
    assert same == one, "the methods are lossless"
    assert (
        replayed(one, method, options, draft, lm.costs if method != "draft-model" else None) == run
    )


def test_a_method_that_reads_more_than_tokens_is_refused(lm):
    _, one = live(lm, "plain", {})
    with pytest.raises(ValueError, match="layers"):
        replayed(one, "draft-and-verify", {})


def test_seconds_by_the_clock_of_the_record():
    passes = [
        Passed(0, "m", i, s, n, n, 1) for i, (n, s) in enumerate([(1, 1.0), (1, 3.0), (3, 4.0)])
    ]
    rounds = [Round(5, 0, 0), Round(6, 1, 1), Round(8, 9, 0)]
    assert seconds(rounds, passes, "m") == pytest.approx(2.0 + 3.0 + 4.0)
    drafts = [*passes, Passed(0, "d", 9.0, 1.0, 2, 2, 1)]
    assert seconds(rounds, drafts, "m") == pytest.approx(9.0 + 0.5 * 10)
    assert seconds(rounds, passes, "another") is None
