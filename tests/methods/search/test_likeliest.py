"""Exact extraction: what is found is what brute force finds."""

import itertools

import pytest

from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_search import (
    CountedTarget,
    check_events,
    check_neighbours,
    check_refusal,
    run_search,
)
from polydec.lab.testing.toy import toy_law
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.regex import Regex
from polydec.laws.constraints.span_of import SpanLanguage
from polydec.laws.shapers.banned import BannedTokensRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.likeliest import LikeliestTextSearch

PROMPT = (0, 1, 0)


def logp(target, text):
    """Of a text behind the prompt, from one session that feeds it as a chain."""

    async def scores():
        return await target.open_session(PROMPT).score_draft(
            Draft.chain_draft(PROMPT[-1], text[:-1]), ScoreRequest()
        )

    rows = run_coroutines([scores()])[0]
    return sum(rows.token_logprobs(i, (x,))[0] for i, x in enumerate(text))


def ranked(target, texts):
    return sorted(((logp(target, text), text) for text in texts), reverse=True)


def spans(tokens, end):
    return {(*tokens[i:j], end) for i in range(len(tokens)) for j in range(i + 1, len(tokens) + 1)}


@pytest.mark.parametrize("seed", range(10))
def test_spans_equal_brute_force(seed):
    size = 4 + seed % 3
    target, end = toy_law(seed, size, sharp=1.0 + seed % 3), size - 1
    passage = [(seed * 7 + i * i) % (size - 1) for i in range(3 + seed % 7)]
    language = SpanLanguage.of_tokens(passage, None, target.vocab.eos, size)
    want = ranked(target, spans(passage, end))[:4]
    got = run_search(LikeliestTextSearch(target, language), Request(PROMPT, 20, n=len(want)))
    for result, (score, text) in zip(got, want, strict=True):
        assert result.score == pytest.approx(score, abs=1e-9) and result.token_ids in spans(
            passage, end
        )
        assert logp(target, result.token_ids) == pytest.approx(score, abs=1e-9) and len(text) > 1
    assert got[0].stats.passes <= len(passage) + 1
    assert got[0].stats.scored <= 1 + len(passage) * (len(passage) + 1) // 2


@pytest.mark.parametrize(
    "constraint", [AnyOf(("ab", "ba", "abba", "c")), Regex("(ab|c){1,3}")], ids=str
)
def test_texts_of_any_small_constraint(constraint):
    for seed in range(4):
        target = toy_law(seed, 4)
        language = constraint.token_language(target.vocab, target.vocab.eos)
        texts = []
        for n in range(1, 7):
            for text in itertools.product(range(3), repeat=n):
                state = language.start_state()
                for x in text:
                    state = language.next_state(state, x)
                if language.allows_token(state, 3):
                    texts.append((*text, 3))
        want = ranked(target, texts)
        got = run_search(LikeliestTextSearch(target, language), Request(PROMPT, 12, n=3))
        assert [r.token_ids for r in got] == [text for _, text in want[:3]]


def test_passes_grow_with_the_passage_at_most():
    """One token a pass, and no more passes than the longest span has tokens, its end counted; two for a flat law's one
    token."""
    target = toy_law(3, 6, sharp=0.1)
    passes = []
    for n in (5, 10, 20, 40):
        passage = [(3 * i + i * i // 5) % 5 for i in range(n)]
        (result,) = run_search(
            LikeliestTextSearch(target, SpanLanguage.of_tokens(passage, None, target.vocab.eos, 6)),
            Request(PROMPT, 64),
        )
        passes.append(result.stats.passes)
        assert result.stats.passes <= n + 1
    assert passes[-1] < 41, "spans that can only lose are followed to their end"


def test_max_tokens_restricts_the_length_and_none_is_an_error():
    target = toy_law(5, 4)
    language = AnyOf(("abab",)).token_language(target.vocab, target.vocab.eos)
    assert run_search(LikeliestTextSearch(target, language), Request(PROMPT, 5))[0].token_ids == (
        0,
        1,
        0,
        1,
        3,
    )
    with pytest.raises(ValueError, match="max_tokens is 4: no text of the constraint ends"):
        run_search(LikeliestTextSearch(target, language), Request(PROMPT, 4))
    with pytest.raises(ValueError, match="n is 3"):
        run_search(LikeliestTextSearch(target, language, 2), Request(PROMPT, 5, n=3))


def test_its_session_is_closed_wherever_it_is_cut_off():
    steps, more = 0, True
    while more:
        target, scheduler = CountedTarget(toy_law(4, 6)), Scheduler()
        task = scheduler.submit_coroutine(
            run_decoder(LikeliestTextSearch(target), Request((0, 1, 2, 3, 0), 12))
        )
        more = all(scheduler.step() for _ in range(steps))
        scheduler.cancel(task)
        assert sorted(target.closed) == list(range(target.opened))
        steps += 1
    assert steps > 3


def test_the_contract_of_searches():
    check_refusal(lambda target: LikeliestTextSearch(target, width=4), 4)
    check_events(lambda target: LikeliestTextSearch(target, width=4), 2)
    check_neighbours(lambda target: LikeliestTextSearch(target, width=4), 2)


def test_a_law_that_leaves_no_text_is_an_error_of_its_own():
    """Every span holds a token that the law never gives."""
    target = toy_law(3, 5)
    spans_of_two = SpanLanguage.of_tokens([1, 2], None, target.vocab.eos, 5)
    with pytest.raises(ValueError, match="every text of the constraint has probability 0 here"):
        run_search(
            LikeliestTextSearch(ShapedTarget(target, BannedTokensRule((1, 2))), spans_of_two),
            Request(PROMPT, 6),
        )
