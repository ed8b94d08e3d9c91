"""Rounds of proposals that are judged and shown: what they reduce to, what is shown, and when they end."""

import math
import random
from dataclasses import dataclass, replace

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.examples import example_artefacts
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.best_of import BestOfPicker
from polydec.methods.search.loop.judging import AttemptTextJudge
from polydec.methods.search.loop.refine import IterativeRefinementSearch
from polydec.methods.search.loop.rollouts import RolloutSearch
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds.reward import TextReward
from polydec.models.sessions.lm import CausalLaw
from rollouts_reference import law, tries, valued

PROMPT = (0, 1, 0)


def plain(target):
    return SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))


def reward(target):
    return example_artefacts(target.vocab)[
        [a.kind for a in example_artefacts(target.vocab)].index("prm")
    ]


@dataclass(frozen=True)
class Always:
    """Says the same of everything."""

    value: float

    def success_chance(self, hidden_H):
        return self.value


def answer(decoder, seed, most=6, **fields):
    return run_coroutines([answer_one(decoder, Request(PROMPT, most, seed=seed, **fields))])[0]


def test_one_round_is_best_of_n():
    for seed in range(8):
        target = toy_law(seed, 5, sharp=0.5)
        best = RolloutSearch(plain(target), BestOfPicker(), 3, 3, reward(target))
        some = IterativeRefinementSearch(plain(target), reward(target), 1, 3)
        a, b = (answer(d, seed, logprobs=1) for d in (best, some))
        if b.finish_reason == "stop":  # best of n looks at cut texts only where none has ended
            assert a.token_ids == b.token_ids and a.logprobs == b.logprobs


def test_a_reward_that_never_changes_gives_the_first_draw():
    for seed in range(12):
        target = toy_law(seed, 4, sharp=0.5)
        first, some = (
            answer(plain(target), seed),
            answer(IterativeRefinementSearch(plain(target), Always(0.5), 3, 2), seed),
        )
        if first.finish_reason == "stop":
            assert some.token_ids == first.token_ids


def test_more_rounds_are_never_worse_and_draw_the_same_first():
    better = 0
    for seed in range(12):
        target = toy_law(seed, 6, sharp=0.3)
        scores = [
            answer(IterativeRefinementSearch(plain(target), reward(target), t, 1), seed).score
            for t in (1, 2, 4)
        ]
        assert scores == sorted(scores)
        better += scores[2] > scores[0]
    assert better >= 3


def test_what_is_good_enough_ends_the_rounds():
    target = toy_law(3, 4, sharp=0.5)
    for value, enough, rounds in ((0.5, 0.5, 1), (0.5, 0.6, 3)):
        some = IterativeRefinementSearch(plain(target), Always(value), 3, 2, enough=enough)
        written = answer(some, 0).stats.written
        one = answer(IterativeRefinementSearch(plain(target), Always(value), 1, 2), 0).stats.written
        assert (written == one) == (rounds == 1)


def test_the_best_answer_and_the_feedback_are_shown(monkeypatch):
    target, shown = toy_law(1, 5, sharp=0.5), []
    opened = type(target).open_session
    monkeypatch.setattr(
        type(target),
        "open_session",
        lambda self, prompt: (shown.append(tuple(prompt)), opened(self, prompt))[1],
    )
    result = answer(
        IterativeRefinementSearch(plain(target), reward(target), 2, 1, feedback="ba"), 4
    )
    first = answer(plain(target), 4)
    ends = target.vocab.eos
    text = tuple(x for x in first.token_ids if x not in ends)
    assert shown[1] == (*PROMPT, *text, 1, 0) and result.score is not None
    shown.clear()
    answer(
        IterativeRefinementSearch(
            plain(target), reward(target), 2, 1, feedback="ba", context=len(PROMPT) + 6
        ),
        4,
    )
    assert shown[1] == (*PROMPT, *text[:1], 1, 0)  # three of the six that there is room for
    shown.clear()
    answer(
        IterativeRefinementSearch(
            plain(target), reward(target), 2, 1, feedback="ba", context=len(PROMPT) + 2
        ),
        4,
        most=2,
    )
    assert shown == [PROMPT]  # no room to write anything behind it


def greedy(target, behind, most):
    """What the target says behind PROMPT and these, without an end."""
    text = tuple(behind)
    while len(text) < len(behind) + most:
        token = int(law(target, text).argmax())
        if token in target.vocab.eos:
            break
        text = (*text, token)
    return text[len(behind) :]


def test_the_worst_answer_and_a_critique_are_shown_with_the_best():
    """By hand: each draw alone, each valued alone, the critique greedy behind the best."""
    contrasted = asked = 0
    for seed in range(16):
        prompts = list[tuple[int, ...]]()
        target, value = toy_law(seed, 6, sharp=0.4), reward(toy_law(seed, 6, sharp=0.4))
        drawn = [r.token_ids for r in tries(target, seed, 3, 6) if r.finish_reason == "stop"]
        if len(drawn) < 3:
            continue
        ranked = sorted(drawn, key=lambda text: -valued(target, value, text))
        best, worst = (
            tuple(x for x in t if x not in target.vocab.eos) for t in (ranked[0], ranked[-1])
        )
        some = {"feedback": "ba", "contrast": "ab", "critique": "b", "context": len(PROMPT) + 80}
        answer(
            IterativeRefinementSearch(plain(Watched(target, prompts)), value, 2, 3, **some), seed
        )
        low, high = (valued(target, value, text) for text in (ranked[-1], ranked[0]))
        before = (*worst, 0, 1) if low < high else ()
        said = greedy(target, (*best, 1), (40 - len(before) - 3) // 2)
        assert prompts == [PROMPT, (*PROMPT, *best, 1), (*PROMPT, *before, *best, 1, *said, 1, 0)]
        contrasted += bool(before)
        asked += bool(said)
        prompts.clear()
        answer(
            IterativeRefinementSearch(
                plain(Watched(target, prompts)), value, 2, 3, **some | {"context": 10}
            ),
            seed,
        )
        assert all(len(p) <= len(PROMPT) + 3 or len(p) < 10 for p in prompts)  # no room: no more
    assert contrasted >= 2 and asked >= 2


class Watched:
    """A target that tells which prompts are opened."""

    def __init__(self, target, shown):
        self.target, self.vocab, self.layers, self.shown = (
            target,
            target.vocab,
            target.layers,
            shown,
        )

    def open_session(self, prompt):
        self.shown.append(tuple(prompt))
        return self.target.open_session(prompt)


def test_answers_that_were_seen_are_not_judged_again():
    target = toy_law(2, 2, sharp=6.0)  # it hardly ever says another thing
    stats = answer(IterativeRefinementSearch(plain(target), reward(target), 8, 4), 1).stats
    assert 4 <= stats.judged < 12


def by_text(target, judge):
    return AttemptTextJudge(TextReward(judge).text_chance, target.vocab.words)


def test_any_function_of_texts_may_judge():
    """One round is the first of the best of its draws, by the function; more rounds are never worse by it; and what a text is
    worth does not hang on the model's states."""

    def judge(text):
        return sum(int(x) for x in text.split()) % 7 / 6 if text.strip() else 0.0

    def worth(r, target):
        kept = [x for x in r.token_ids if x not in target.vocab.eos]
        return (
            judge(target.vocab.words.decode(kept))
            if target.vocab.words
            else judge(" ".join(map(str, kept)))
        )

    better = 0
    for seed in range(12):
        target = toy_law(seed, 5, sharp=0.4)
        target = CausalLaw(target.network, replace(target.vocab, words=None))
        texts = by_text(target, judge)
        one, many = (
            answer(IterativeRefinementSearch(plain(target), None, rounds, 3, text=texts), seed)
            for rounds in (1, 5)
        )
        assert one.score <= many.score and many.score in (worth(many, target), 0.0)
        better += many.score > one.score
        assert many.stats.judged >= one.stats.judged
    assert better > 2


def test_a_classifier_judges_by_its_probability():
    even = TextReward(lambda text: 3.0, True)
    assert even.text_chance("x") == pytest.approx(1 / (1 + math.exp(-3.0)))
    assert TextReward(lambda text: -1e9, True).text_chance("x") == pytest.approx(0.0)
    assert [TextReward(lambda text, v=v: v).text_chance("") for v in (-2, 0.4, 7)] == [
        0.0,
        0.4,
        1.0,
    ]
    target = toy_law(1, 5)
    kit = (TextReward(lambda text: 0.5), reward(target))
    assert build("iterative-agent-decoding", target, artefacts=kit)[0].reward is None
    assert build("iterative-agent-decoding", target, artefacts=kit[1:])[0].text is None
    with pytest.raises(ValueError, match="needs a process reward model"):
        build("iterative-agent-decoding", target)
    with pytest.raises(ValueError, match="reward is None"):
        IterativeRefinementSearch(plain(target), None)


def test_bad_fields():
    target = toy_law(0, 3)
    for fields, said in (
        ({"rounds": 0}, "rounds is 0: it must lie in 1 to 64"),
        ({"proposals": 65}, "proposals is 65"),
        ({"enough": 1.5}, "enough is 1.5: it must lie in 0 to 1"),
        ({"patience": 0}, "patience is 0"),
        ({"feedback": "xyz"}, "feedback is 'xyz': the model's tokenizer cannot spell it"),
    ):
        with pytest.raises(ValueError, match=said):
            IterativeRefinementSearch(plain(target), Always(0.5), **fields)


class Climber:
    """A model that, shown one of ten numbers, says that one, the next or the one before it, and shown none 0, 1 or 2; a
    reward that likes large ones; and one that likes any."""

    start, mark, end = 10, 11, 12

    def __init__(self):
        self.model = toy_law(0, 13)
        weight = self.model.network.weight
        weight[:] = -30.0
        weight[:, :10, self.end] = 0.0  # behind a number the answer ends
        for shown in range(10):
            weight[shown, self.mark, [x for x in (shown - 1, shown, shown + 1) if 0 <= x < 10]] = (
                0.0
            )
        weight[self.start, self.mark, :3] = 0.0

    def reached(self, reward, seed, rounds, proposals):
        some = IterativeRefinementSearch(plain(self.model), reward, rounds, proposals, feedback="l")
        found = run_coroutines([answer_one(some, Request((self.start, self.mark), 3, seed=seed))])[
            0
        ]
        assert found.token_ids[1:] == (self.end,)
        return found.token_ids[0]


@dataclass(frozen=True)
class Likes:
    """Each number as much as this says."""

    of: tuple[float, ...]

    def success_chance(self, hidden_H):
        token, before = int(hidden_H[0]), int(hidden_H[1])
        return self.of[token if token < 10 else before]


def test_rounds_lead_to_where_the_first_law_never_goes():
    """As many draws side by side stay where the model begins."""
    climber, likes = Climber(), Likes(tuple(x / 10 for x in range(10)))
    rounds = [climber.reached(likes, seed, 16, 2) for seed in range(10)]
    beside = [climber.reached(likes, seed, 1, 32) for seed in range(10)]
    assert max(beside) == 2 and sum(rounds) / 10 >= 5


def test_a_reward_that_says_nothing_true_wins_nothing():
    climber, rng = Climber(), random.Random(0)
    one = [climber.reached(Always(0.5), seed, 1, 1) for seed in range(20)]
    mixed = [
        climber.reached(Likes(tuple(rng.random() for _ in range(10))), seed, 16, 2)
        for seed in range(20)
    ]
    true = [
        climber.reached(Likes(tuple(x / 10 for x in range(10))), seed, 16, 2) for seed in range(20)
    ]
    assert sum(mixed) / 20 < sum(one) / 20 + 1.5 < sum(true) / 20 - 2
