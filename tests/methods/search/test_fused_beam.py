"""Generative fusion decoding: the verdict by brute force, the search against a reference, what it reduces to."""

import json
import math
from dataclasses import replace
from functools import cache

import pytest
import torch

import micro
from polydec import generate, load
from polydec.base.errors import PolydecError
from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_search import (
    CountedTarget,
    check_events,
    check_neighbours,
    check_refusal,
    check_sessions,
)
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords
from polydec.lab.train.seq2seq import train_seq2seq
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec
from polydec.laws.targets.read_as_bytes import EMPTY, read_as_bytes
from polydec.methods.search.loop.fused_beam import NEVER, FusedBeamSearch, FusionReader
from polydec.models.sessions.lm import CausalLaw

ALL = 10**6
"""Covers that are no limit here."""
HEARD = ("a", "b", "ab", "c", "ba")
KNOWN = ("b", "a", "bb", "abc", "ca", "c", "ab")
PROMPT = (5, 0)
"""A mark, so the language model reads the letter behind it."""


def spelled(seed, pieces, sharp=1.2):
    """A law over these pieces and an end."""
    n = len(pieces)
    words = ToyWords((*pieces, "$"), frozenset({n}))
    return CausalLaw(
        OrderTwoNetwork(seed, n + 1, sharp),
        TokenVocabulary(n + 1, frozenset({n}), words=words),
        chunk=2,
    )


@cache
def row(lm, text):
    async def ask():
        return (
            (await lm.open_session(text).score_draft(Draft.chain_draft(text[-1]), ScoreRequest()))
            .logprob_row(0)
            .tolist()
        )

    return run_coroutines([ask()])[0]


def read(lm, text):
    """(log-probability that a text begins with these bytes, tokens of its likeliest spelling), by all sequences."""
    pieces, end = lm.vocab.words.of, len(lm.vocab.words.of) - 1
    covers = []

    def follow(tokens, said, logp):
        if said == text:
            covers.append((logp, len(tokens)))
            return
        law, going = row(lm, (end, *tokens)), []
        for x, piece in enumerate(pieces[:-1]):
            after = said + piece
            if len(after) > len(text) and after.startswith(text):
                going.append(law[x])
            elif text.startswith(after):
                follow((*tokens, x), after, logp + law[x])
        if going:
            covers.append((logp + math.log(sum(map(math.exp, going))), len(tokens) + 1))

    follow((), "", 0.0)
    total = math.log(sum(math.exp(x) for x, _ in covers)) if covers else -math.inf
    return total, max(covers)[1] if covers else 0


def fused(heard, known, width=3, share=0.4, **fields):
    law = read_as_bytes(known, fields.pop("covers", ALL), "the draft")
    return FusedBeamSearch(heard, FusionReader(law, EMPTY), width, share, **fields)


def reference(
    heard, known, most, *, width, share, lagging, mean, before="a", prompt=PROMPT, lead="", room=99
):
    """(score, tokens) of the beam, the best first. lead: what an answer may begin with, unread; room: letters that are read."""
    words, end = heard.vocab.words.of, len(heard.vocab.words.of) - 1
    begun = read(known, before)

    def verdict(text):
        said = "".join(words[x] for x in text if x != end)
        said = said.removeprefix(lead)[:room]
        if not said:
            return NEVER
        total, tokens = read(known, before + said)
        if total == -math.inf:
            return NEVER
        return (total - begun[0]) / (max(1, tokens - begun[1]) if mean else 1)

    beam = [(0.0, (), 0.0)]
    while any(not over(text, end, most) for _, text, _ in beam):
        pool = [b for b in beam if over(b[1], end, most)]
        for _, text, total in (b for b in beam if not over(b[1], end, most)):
            law = row(heard, (*prompt, *text))
            best = sorted(range(len(law)), key=lambda x: -law[x])[:width]
            best = best[:1] if best[0] == end else [x for x in best if x != end]
            for x in best:
                after, sum_ = (*text, x), total + law[x]
                said = verdict(text if lagging else after)
                heard_ = sum_ / len(after) if mean else sum_
                pool.append(((1 - share) * heard_ + share * said, after, sum_))
        beam = sorted(pool, key=lambda b: -b[0])[:width]
    return [(score, text) for score, text, _ in beam]


def over(text, end, most):
    return bool(text) and (text[-1] == end or len(text) == most)


@pytest.mark.parametrize("text", ["a", "b", "ab", "abc", "abcab", "bbab", "cabca"])
def test_the_verdict_is_the_sum_over_all_spellings(text):
    """With few covers it is below that, and above the one spelling of the tokenizer."""
    for seed in range(4):
        known = spelled(seed, KNOWN)

        async def asked(covers, known=known):
            session = read_as_bytes(known, covers, "it").open_session(EMPTY)
            await session.score_draft(
                Draft.chain_draft(EMPTY[0], tuple(text.encode())), ScoreRequest()
            )
            return session.spelled_logprob(len(text))

        total, tokens = read(known, text)
        assert run_coroutines([asked(ALL)])[0] == pytest.approx((total, tokens), abs=1e-12)
        few, _ = run_coroutines([asked(1)])[0]
        ids, own = known.vocab.words.encode(text), 0.0
        for i, x in enumerate(ids):
            own += row(known, (len(KNOWN), *ids[:i]))[x]
        assert own - 1e-12 <= few <= total + 1e-12


@pytest.mark.parametrize("text", ["a", "ab", "abc", "abcab", "bbab", "cabca"])
def test_the_published_sum_goes_over_beginnings_of_the_own_spelling(text):
    """At each of its places: the tokens before, and all that go on over the end of the text; and the spelling itself."""
    less = 0
    for seed in range(4):
        known = spelled(seed, KNOWN)

        async def asked(own, known=known):
            law = replace(read_as_bytes(known, 1, "it"), own_prefixes=own)
            session = law.open_session(EMPTY)
            await session.score_draft(
                Draft.chain_draft(EMPTY[0], tuple(text.encode())), ScoreRequest()
            )
            return session.spelled_logprob(len(text))[0]

        words = known.vocab.words
        ids, before, parts = words.encode(text), 0.0, []
        for i, token in enumerate(ids):
            rest = "".join(words.of[x] for x in ids[i:])
            law = row(known, (len(KNOWN), *ids[:i]))
            longer = [x for x, p in enumerate(words.of[:-1]) if p.startswith(rest) and p != rest]
            parts += [before + law[x] for x in longer]
            before += law[token]
        want = math.log(sum(map(math.exp, [*parts, before])))
        assert run_coroutines([asked(True)])[0] == pytest.approx(want, abs=1e-12)
        less += run_coroutines([asked(False)])[0] > want + 1e-6
    # One letter has no other place where a token could begin; all others have, and their sums are smaller.
    assert less == (0 if text == "a" else 4)


def test_the_penalty_and_the_stop_of_the_paper():
    heard, known = spelled(1, HEARD), spelled(41, KNOWN)
    made = build(
        "gfd", heard, known, {"penalty": 2.0, "heat": 1.7, "apart": 20, "own": True, "covers": 1}
    )[0]
    assert made.apart == 20 and made.reader.law.own_prefixes
    heated = made.reader.law.target
    assert heated.shapers[0].temperature == 1.7
    (rule,) = heated.target.shapers
    assert (rule.penalty, rule.window) == (2.0, 50)
    # Only the last tokens count.
    near = replace(rule, window=2)
    state = near.next_state(near.start_state((0, 1)), 2)
    logw_V = torch.tensor([1.0, 1.0, 1.0, 1.0])
    assert near.shape_law(state, logw_V).tolist() == [1.0, 0.5, 0.5, 1.0]
    ended = shorter = 0
    for seed in range(12):
        runs = [
            run_coroutines(
                [run_decoder(fused(spelled(seed, HEARD), known, 3, apart=n), Request(PROMPT, 9))]
            )[0][0]
            for n in (0, 1)
        ]
        ended += runs[0].finish_reason == "stop"
        shorter += runs[1].stats.passes < runs[0].stats.passes
        if runs[0].token_ids != runs[1].token_ids:
            assert runs[1].finish_reason == "stop" and len(runs[1].token_ids) < 9
    assert shorter


@pytest.mark.parametrize("lagging", [True, False])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_it_is_the_published_search(share, mean, lagging):
    for seed, width in ((1, 1), (2, 2), (3, 3), (4, 3)):
        heard, known = spelled(seed, HEARD), spelled(seed + 40, KNOWN)
        fields = {"width": width, "share": share, "mean": mean, "lagging": lagging}
        want = reference(heard, known, 5, **fields)
        got = run_coroutines(
            [run_decoder(fused(heard, known, **fields), Request(PROMPT, 5, n=len(want)))]
        )[0]
        assert [r.token_ids for r in got] == [text for _, text in want]
        assert [r.score for r in got] == pytest.approx([score for score, _ in want], abs=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_one_beam_whose_verdict_lags_is_greedy(share):
    for seed in range(6):
        heard, known = spelled(seed, HEARD), spelled(seed + 40, KNOWN)
        got = run_coroutines([answer_one(fused(heard, known, 1, share), Request(PROMPT, 7))])[0]
        text = ()
        while not over(text, len(HEARD), 7):
            law = row(heard, (*PROMPT, *text))
            text = (*text, law.index(max(law)))
        assert got.token_ids == text


def test_at_share_0_the_language_model_is_not_asked():
    heard, known = spelled(1, HEARD), spelled(2, KNOWN)
    run_coroutines([answer_one(fused(heard, known, share=0.0), Request(PROMPT, 6))])
    assert not known.network.runs
    run_coroutines([answer_one(fused(heard, known, share=0.1), Request(PROMPT, 6))])
    assert known.network.runs


def test_a_verdict_that_does_not_lag_changes_the_text():
    changed = 0
    for seed in range(8):
        heard, known = spelled(seed, HEARD, 0.5), spelled(seed + 40, KNOWN, 2.0)
        late, early = (
            run_coroutines(
                [answer_one(fused(heard, known, 4, 0.7, lagging=x), Request(PROMPT, 6))]
            )[0]
            for x in (True, False)
        )
        changed += late.token_ids != early.token_ids
    assert changed


def written(plan, prompt, most, n):
    found = run_coroutines([run_decoder(plan, Request(prompt, most, n=n))])[0]
    return [(r.token_ids, pytest.approx(r.score, abs=1e-9)) for r in found]


@pytest.mark.parametrize("lagging", [True, False])
@pytest.mark.parametrize("most", [2, 3, 6])
def test_a_language_model_reads_what_it_has_room_for(most, lagging):
    """Of what is read first the end, at most half of the room; of the answer as many letters as fit, behind which its verdict
    stays, whatever tokens come then."""
    heard, known = spelled(3, HEARD), spelled(43, KNOWN)
    for before, share in (("", 0.4), ("bc", 0.4), ("abcabcab", 0.8)):
        whole = fused(heard, known, share=share, lagging=lagging)
        small = replace(whole, reader=replace(whole.reader, most=most, before=before))
        first = f"{before}a"[-(most // 2) :]
        want = reference(
            heard, known, 8, width=3, share=share, lagging=lagging, mean=True,
            before=first, room=most - len(first),
        )  # fmt: skip
        got = written(small, PROMPT, 8, len(want))
        assert [(text, score) for score, text in want] == got
        if most < 6:  # it hears less than all of the text, and says something else then
            full = replace(whole, reader=replace(whole.reader, before=before))
            assert got != written(full, PROMPT, 8, len(want))


@pytest.mark.parametrize("lagging", [True, False])
def test_a_text_that_the_language_model_cannot_spell_is_worth_what_nothing_is(lagging):
    """A letter that it has no token for: the beams that hold it are found by the recogniser alone."""
    odd = 0
    for seed in range(4):
        heard, known = spelled(seed, (*HEARD, "d", "ad")), spelled(seed + 40, KNOWN)
        fields = {"width": 3, "share": 1e-7, "lagging": lagging, "mean": True}
        prompt = len(HEARD) + 2, 0
        want = reference(heard, known, 5, prompt=prompt, **fields)
        plan = fused(heard, known, 3, 1e-7, lagging=lagging)
        assert written(plan, prompt, 5, len(want)) == [(text, score) for score, text in want]
        odd += any({5, 6} & {*text[:-1]} for _, text in want)
    assert odd


def test_a_room_of_one_letter_is_the_answers():
    heard, known = spelled(3, HEARD), spelled(43, KNOWN)
    whole = fused(heard, known)
    small = replace(whole, reader=replace(whole.reader, most=1, before="abc"))
    fields = {"width": 3, "share": 0.4, "lagging": True, "mean": True}
    want = reference(heard, known, 6, before="", room=1, **fields)
    assert written(small, PROMPT, 6, len(want)) == [(text, score) for score, text in want]


@pytest.mark.parametrize("lagging", [True, False])
@pytest.mark.parametrize("lead", ["a", "b"])
def test_what_stands_before_every_text_is_read_where_something_stands_before_it_alone(
    lead, lagging
):
    """The letters that a tokenizer writes before a text are no part of an answer at its beginning, once; behind a prompt that
    is read, or a text before it, they are letters like others."""
    changed = 0
    for seed in range(2):
        heard, known = spelled(seed, (*HEARD, "aa", "bb")), spelled(seed + 40, KNOWN)
        whole = fused(heard, known, 3, 0.7, lagging=lagging)
        end = len(heard.vocab.words.of) - 1
        for prompt, before, first in (
            ((end,), "", ""),
            ((end, 0), "", "a"),
            ((end,), "c", "c"),
        ):
            named = replace(whole, reader=replace(whole.reader, lead=lead.encode(), before=before))
            fields = {"width": 3, "share": 0.7, "lagging": lagging, "mean": True}
            wants = [
                reference(heard, known, 5, before=first, prompt=prompt, lead=x, **fields)
                for x in (lead, "")
            ]
            want = wants[0] if not first else wants[1]
            got = written(named, prompt, 5, len(want))
            assert got == [(text, score) for score, text in want], (prompt, before)
            changed += wants[0] != wants[1]
    assert changed >= 2, "the letters matter"


def test_both_models_are_given_back_wherever_it_is_cut_off():
    laws = []

    def make(target):
        counted = CountedTarget(spelled(7, (*KNOWN, *"def")))
        laws.append(counted)
        law = read_as_bytes(counted, 2, "it")
        return FusedBeamSearch(target, FusionReader(law, EMPTY), 4, 0.5)

    check_sessions(make)
    assert laws and all(sorted(law.closed) == list(range(law.opened)) for law in laws)


def test_contract():
    """Answers may be fewer than beams here: an end that is likeliest stands alone."""

    def make(target):
        return build("gfd", target, spelled(9, (*KNOWN, *"def")), {"width": 4, "share": 0.5})[0]

    check_refusal(make, 4)
    check_sessions(make)
    check_events(make, 2)
    check_neighbours(make, 2)


def test_refusals():
    heard, known = spelled(1, HEARD), spelled(2, KNOWN)
    with pytest.raises(PolydecError, match="draft"):
        build("gfd", heard, None, {})
    mute = CausalLaw(OrderTwoNetwork(1, 4), TokenVocabulary(4, frozenset({3})))
    with pytest.raises(PolydecError, match="tokens of which the bytes are known"):
        build("gfd", heard, mute, {})
    silent = ToyWords(("a", "b", "c", "$"), frozenset(range(4)))
    for words in (None, silent):
        unread = CausalLaw(OrderTwoNetwork(1, 4), TokenVocabulary(4, frozenset({3}), words=words))
        with pytest.raises(PolydecError, match="no tokens of which the bytes are known"):
            FusedBeamSearch(unread, fused(heard, known).reader)
    with pytest.raises(PolydecError, match="share"):
        fused(heard, known, share=1.5)
    with pytest.raises(PolydecError, match="width"):
        fused(heard, known, width=65)


def test_a_recogniser_writes_from_a_source(tmp_path):
    """An encoder-decoder model that was trained for a moment, and a language model of another tokenizer."""
    rows = [{"source": f"a {x} b", "target": f"a {x}"} for x in ("cat", "dog", "fox", "cow", "hen")]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = {"steps": 2, "tokens": 64, "encoder": 1, "decoder": 1, "width": 32, "vocab": 260}
    out = str(tmp_path / "heard")
    train_seq2seq(Seq2SeqSpec(out, str(tmp_path / "pairs.jsonl"), **spec))
    lm = load(out, draft=str(micro.write(tmp_path / "known")), dtype="float32")
    ask = {"source": "a cat b", "max_tokens": 6}
    plain = generate(lm, "", **ask).choices[0].token_ids
    alone = generate(lm, "", method="gfd", options={"width": 1}, **ask).choices[0].token_ids
    assert alone == plain
    few = {"width": 4, "share": 0.9, "mean": False}
    scores = [c.score for c in generate(lm, "", method="gfd", options=few, n=2, **ask).choices]
    assert scores == sorted(scores, reverse=True)


def test_models_of_two_tokenizers(tmp_path):
    """By its name, in an engine, with several answers."""
    lm = load(
        str(micro.write(tmp_path / "a")),
        draft=str(micro.write(tmp_path / "b", seed=1, vocab=300)),
        dtype="float32",
    )
    ask = {"raw": True, "max_tokens": 8, "method": "gfd", "sampling": None}
    said = generate(lm, "The grey fox", n=2, options={"share": 0.6, "width": 3}, **ask)
    scores = [c.score for c in said.choices]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    plain = generate(lm, "The grey fox", raw=True, max_tokens=8)
    alone = generate(lm, "The grey fox", options={"width": 1}, **ask)
    assert alone.choices[0].token_ids == plain.choices[0].token_ids
