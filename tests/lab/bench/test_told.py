"""A record made again without its model: equal under its own setting, and as a live run under others."""

from dataclasses import replace

import numpy as np
import pytest

from polydec import generate, load
from polydec.core.types import TokenVocabulary
from polydec.lab.bench.recorded_target import (
    RecordedAnswer,
    RecordedTarget,
    ReplayRound,
    replay_rounds,
    replay_run,
)
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.models.learned.kinds.ngrams import LAST, NGrams, extend_context_key

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
        if isinstance(event, ProposedEvent):
            rounds.append([event.position, len(event.token) - 1])
        elif isinstance(event, VerifiedEvent):
            rounds[-1].append(len(event.path))
    vocab = lm.checkpoint.lm.vocab
    one = RecordedAnswer(
        lm.encode_prompt(PROMPT, raw=True), answer.token_ids, vocab.size, vocab.eos
    )
    return [ReplayRound(*r) for r in rounds], one


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
    draft = ShapedTarget(lm.draft_law(), GreedyRule()) if method == "draft-model" else None
    assert same == one, "the methods are lossless"
    assert (
        replay_rounds(one, method, options, draft, lm.costs if method != "draft-model" else None)
        == run
    )


def test_a_method_that_reads_more_than_tokens_is_refused(lm):
    _, one = live(lm, "plain", {})
    with pytest.raises(ValueError, match="layers"):
        replay_rounds(one, "draft-and-verify", {})


def test_company_is_told_by_position():
    law = RecordedTarget(
        (1, 2, 3, 4, 5, 6), TokenVocabulary(9, frozenset()), company=((2, 3), (4, 1))
    )
    assert [law.open_session((1, 2)).peers, law.peers_at(0), law.peers_at(2), law.peers_at(3)] == [
        3,
        1,
        3,
        1,
    ]
    assert RecordedTarget((1, 2), TokenVocabulary(9, frozenset())).peers_at(0) == 1


def test_a_table_that_goes_with_the_model_drafts_in_a_replay():
    vocab, text = TokenVocabulary(20, frozenset()), (5, 6, 7, 8) * 6
    after = sorted((extend_context_key(0, x), y) for x, y in zip((5, 6, 7, 8), (6, 7, 8, 5)))
    table = NGrams(
        1,
        vocab,
        np.array([key for key, _ in after], np.uint64),
        np.array([[y, LAST] for _, y in after]),
        np.array([[255, 0]] * 4),
    )
    one = RecordedAnswer((5,), text[1:], 20, frozenset())
    again = replay_run(one, "ngram-draft", {"cost_aware": False}, artefacts=(table,)).rounds
    assert len(again) < len(one.tokens) / 2 and all(r.accepted == r.drafted for r in again[:-1])
    with pytest.raises(ValueError, match="n-gram table"):
        replay_run(one, "ngram-draft", {})


def test_the_last_drafts_reach_as_far_as_they_did_in_the_record():
    text = (5, 6, 7, 8) * 6
    cut = RecordedAnswer(text[:8], text[8:], 20, frozenset(), limit=40)
    ended = RecordedAnswer(text[:8], text[8:], 20, frozenset({8}), limit=40)
    assert (cut.room, ended.room, RecordedAnswer((1,), (8,), 20, frozenset({8})).room) == (
        16,
        40,
        1,
    )
    one = RecordedAnswer((5, 6, 7, 9, 5, 6), (7, 9), 20, frozenset({9}), limit=40)
    options = {"cost_aware": False, "depth": 4}
    assert [r.drafted for r in replay_rounds(one, "prompt-lookup", options)] == [2]
    assert [r.drafted for r in replay_rounds(replace(one, limit=0), "prompt-lookup", options)] == [
        1
    ]


def test_a_draft_model_s_passes_are_no_time_of_the_loop(lm):
    _, one = live(lm, "plain", {})
    draft = ShapedTarget(lm.draft_law(), GreedyRule())
    again = replay_run(one, "draft-model", {"depth": 3}, draft, lm.costs)
    assert again.others > len(again.rounds) > 0 and 0 <= again.seconds < 5
