"""Transfer Q*: what it reduces to, its law by enumeration, and what it counts."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest

from polydec.base.errors import MissingError, RequestError
from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_search import toy_writer_factory
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.transfer import TransferQSearch
from polydec.models.learned.kinds.reward import TextReward

PROMPT = (0, 1, 0)


def count(text):
    """What a text is worth here: its letters a, and less for each b."""
    return text.count("a") - 0.5 * text.count("b")


def row(target, text):
    async def ask():
        whole = (*PROMPT, *text)
        return (
            (
                await target.open_session(whole).score_draft(
                    Draft.chain_draft(whole[-1]), ScoreRequest()
                )
            )
            .logprob_row(0)
            .tolist()
        )

    return run_coroutines([ask()])[0]


def said(target, text):
    return target.vocab.words.decode([x for x in text if x not in target.vocab.eos])


def ended(target, text, most):
    return bool(text) and (text[-1] in target.vocab.eos or len(text) == most)


def worth(target, baseline, text, length, most):
    """The mean worth of everything that the baseline may write behind a text, by enumeration."""
    if not length or ended(target, text, most):
        return count(said(target, text))
    return sum(
        math.exp(p) * worth(target, baseline, (*text, x), length - 1, most)
        for x, p in enumerate(row(baseline, text))
        if p > -math.inf
    )


def request_of(target, most, **fields):
    return Request(PROMPT, most, writer=toy_writer_factory(target, ""), **fields)


@pytest.mark.parametrize("fields", [{"width": 1}, {"weight": 0.0}, {"length": 0, "weight": 0.0}])
def test_one_candidate_or_no_weight_is_greedy(fields):
    for seed in range(6):
        target = toy_law(seed, 5)
        got = run_coroutines(
            [answer_one(TransferQSearch(target, count, **fields), request_of(target, 8))]
        )[0]
        text = ()
        while not ended(target, text, 8):
            logp = row(target, text)
            text = (*text, logp.index(max(logp)))
        assert got.token_ids == text


@pytest.mark.parametrize("length", [0, 1, 3])
def test_with_a_certain_baseline_it_takes_what_the_formula_says(length):
    """A baseline of one text each makes the value of a candidate exact; length 0 is ARGS."""
    changed = 0
    for seed in range(8):
        target, baseline = toy_law(seed, 5), toy_law(seed + 50, 5, sharp=400.0)
        plan = TransferQSearch(target, count, baseline, False, 4, length, 1, 1.5)
        got = run_coroutines([answer_one(plan, request_of(target, 7))])[0]
        text = ()
        while not ended(target, text, 7):
            logp = row(target, text)
            near = sorted(range(5), key=lambda x: -logp[x])[:4]
            value = {x: worth(target, baseline, (*text, x), length, 7) for x in near}
            text = (*text, max(near, key=lambda x: logp[x] + 1.5 * value[x]))
        assert got.token_ids == text
        changed += value[max(near, key=lambda x: logp[x])] != max(value.values())
    assert changed


@pytest.mark.parametrize("length", [0, 2])
def test_the_reward_may_read_the_prompt(length):
    """Answers are worth something to one prompt alone: what is read begins with its text, and so the text is another one."""
    read = set()

    def reward(text):
        read.add(text)
        return 5.0 * count(text) if text.startswith(said(target, PROMPT)) else 0.0

    changed = 0
    for seed in range(6):
        target = toy_law(seed, 5)
        plan = TransferQSearch(target, reward, width=4, length=length, prompted=True)
        seeing = run_coroutines([answer_one(plan, request_of(target, 7))])[0]
        assert read and all(text.startswith(said(target, PROMPT)) for text in read)
        read.clear()
        blind = run_coroutines([answer_one(replace(plan, prompted=False), request_of(target, 7))])[
            0
        ]
        assert any(not text.startswith(said(target, PROMPT)) for text in read)
        read.clear()
        changed += seeing.token_ids != blind.token_ids
    assert changed
    options = {"prompted": True, "length": length}
    made = build("transfer-q-star", target, None, options, artefacts=(TextReward(reward),))[0]
    assert made.prompted


@pytest.mark.parametrize("tries", [1, 6])
def test_a_baseline_of_another_reward_is_weighed_by_the_difference(tries):
    """Indirect transfer against its formula, over what both rewards were asked; without the weights other tokens are taken."""
    changed = 0
    for seed in range(16):
        target, baseline = toy_law(seed, 5), toy_law(seed + 50, 5, sharp=0.7)
        asked = []

        def reward(text, seen=asked):
            seen.append(text)
            return count(text)

        def other(text):
            return 3.0 * text.count("a")

        plan = TransferQSearch(
            target, reward, baseline, False, 4, 2, tries, 1.5, indirect=0.5, baseline_reward=other
        )
        got = run_coroutines([answer_one(plan, request_of(target, 4))])[0]
        logp = row(target, ())
        near = sorted(range(5), key=lambda x: -logp[x])[:4]
        value = []
        for i in range(4):
            texts = asked[i * tries : (i + 1) * tries]
            w = [math.exp((count(t) - other(t)) / 0.5) for t in texts]
            weighed = sum(a * count(t) for a, t in zip(w, texts, strict=True))
            value.append(weighed if tries == 1 else weighed / sum(w))
        assert got.token_ids[0] == near[max(range(4), key=lambda i: logp[near[i]] + 1.5 * value[i])]
        direct = replace(plan, indirect=0.0, baseline_reward=None)
        taken = run_coroutines([answer_one(direct, request_of(target, 4))])[0].token_ids[0]
        changed += got.token_ids[0] != taken
    assert changed


def test_a_second_reward_is_that_of_the_baseline():
    target, rewards = toy_law(1, 5), (TextReward(count), TextReward(len))
    options = {"indirect": 2.0}
    made = build("transfer-q-star", target, None, options, artefacts=rewards)[0]
    assert (made.reward, made.baseline_reward, made.indirect) == (count, len, 2.0)
    with pytest.raises(
        MissingError, match="indirect is 2, and beside the first one there is no reward"
    ):
        build("transfer-q-star", target, None, options, artefacts=rewards[:1])
    with pytest.raises(RequestError, match=r"indirect is 1\.0, and a second reward is not given"):
        TransferQSearch(target, count, indirect=1.0)


def test_the_law_of_drawn_tokens_is_that_of_all_draws():
    """Every draw of the two rollouts and of the token, enumerated, against the formula over all pairs of rollouts."""
    target, baseline = toy_law(3, 3), toy_law(4, 3)
    plan = TransferQSearch(target, count, baseline, False, 2, 1, 1, 1.0, 1.0)
    got = law_of(lambda rng: answer_one(plan, request_of(target, 2), rng))
    want = defaultdict(float)

    def futures(text):
        if ended(target, text, 2):
            return [(1.0, count(said(target, text)))]
        return [
            (math.exp(p), count(said(target, (*text, x))))
            for x, p in enumerate(row(baseline, text))
        ]

    def go_on(text, p):
        if ended(target, text, 2):
            want[text] += p
            return
        logp = row(target, text)
        near = sorted(range(3), key=lambda x: -logp[x])[:2]
        for pa, a in futures((*text, near[0])):
            for pb, b in futures((*text, near[1])):
                score = [logp[near[0]] + a, logp[near[1]] + b]
                total = sum(map(math.exp, score))
                for x, s in zip(near, score):
                    go_on((*text, x), p * pa * pb * math.exp(s) / total)

    go_on((), 1.0)
    assert text_law_distance(got, dict(want)) < 1e-9


def test_many_rollouts_come_near_the_closed_form():
    """With a long baseline and many draws the taken token is the one of the largest exact value."""
    for seed in range(4):
        target = toy_law(seed, 4, sharp=0.7)
        plan = TransferQSearch(target, count, target, True, 3, 3, 64, 8.0)
        got = run_coroutines([answer_one(plan, request_of(target, 4))])[0].token_ids[0]
        logp = row(target, ())
        near = sorted(range(4), key=lambda x: -logp[x])[:3]
        score = {x: logp[x] + 8 * worth(target, target, (x,), 3, 4) for x in near}
        assert score[got] > max(score.values()) - 8 * 3 * 2 / 64**0.5 / 2
        assert got == max(near, key=score.get) or len(set(score.values())) < 3


def test_a_weight_raises_the_reward_and_the_distance_from_the_model():
    target = toy_law(7, 5, sharp=0.7)
    law = target_law(target, PROMPT, 4, ())
    rewards = []
    for weight in (0.0, 0.5, 2.0):
        plan = TransferQSearch(target, count, target, True, 5, 4, 4, weight, 1.0)
        found = run_coroutines([run_decoder(plan, request_of(target, 4, n=200))])[0]
        rewards.append(sum(count(r.text) for r in found) / 200)
    free = sum(p * count(said(target, text)) for text, p in law.items())
    assert rewards[0] == pytest.approx(free, abs=0.35)
    assert rewards[0] + 0.3 < rewards[1] < rewards[2]


def test_beginnings_are_fed_once():
    """What is fed beside the prompt: the answer's own tokens twice (the law's path, and the tree of what is drawn), candidates
    that are not taken once, and what is drawn but for its last token."""
    target = toy_law(5, 6, eos=-1)
    plan = TransferQSearch(target, count, target, True, 3, 4, 1)
    run_coroutines([answer_one(plan, Request(PROMPT, 10))])
    fed = target.network.runs / target.network.layers
    assert fed <= 2 + 2 + 10 + 10 * 3 * 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"width": 0}, "candidates is 0"),
        ({"length": -1}, "length is -1"),
        ({"tries": 65}, "tries is 65"),
        ({"weight": -1.0}, "weight is -1"),
        ({"heat": math.inf}, "heat is inf"),
        ({"baseline": toy_law(1, 4)}, "the draft"),
    ],
)
def test_bad_values_are_one_sentence(fields, said):
    with pytest.raises(RequestError, match=said):
        replace(TransferQSearch(toy_law(0, 5), count), **fields)
