"""A tree of sub-questions: what it reduces to, what its chances are, which words an answer has."""

import math
import re
from collections import Counter
from dataclasses import replace

import pytest

import rollouts_reference
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import ToyWords, toy_law
from polydec.laws.constraints.everything import UnrestrictedLanguage
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.passages import PassageRanking
from polydec.methods.search.loop.thought_tree import (
    CHECK,
    ThoughtChain,
    ThoughtTreeSearch,
    draw_thoughts,
    is_same_step,
    step_words,
    usual_check,
)
from polydec.methods.search.loop.word_bank import word_bank
from polydec.models.sessions.lm import CausalLaw
from rollouts_reference import PROMPT, plain


def answer(decoder, seed=0, most=8, **fields):
    return run_coroutines([answer_one(decoder, Request(PROMPT, most, seed=seed, **fields))])[0]


def test_the_model_weighs_its_own_steps_unless_it_cannot_be_asked():
    mute, spelling = toy_law(0), toy_law(0, 3)
    spelling = CausalLaw(
        spelling.network, replace(spelling.vocab, words=ToyWords(("yes", "no", "x")))
    )
    assert build("stoc-tot", mute)[0].check == ""
    assert usual_check(spelling.vocab) == ""  # yes and no, and not the question
    asked = CausalLaw(
        spelling.network, replace(spelling.vocab, words=ToyWords(("yes", "no", CHECK)))
    )
    assert build("stoc-tot", asked)[0].check == CHECK
    assert build("stoc-tot", asked, None, {"check": ""})[0].check == ""


def chance(target, text, begin):
    """Mean log-probability of what a text holds from a place on."""

    async def row(i):
        before = (*PROMPT, *text[:i])
        return (
            await target.open_session(before).score_draft(
                Draft.chain_draft(before[-1]), ScoreRequest()
            )
        ).logprob_row(0)

    return sum(float(run_coroutines([row(i)])[0][text[i]]) for i in range(begin, len(text))) / (
        len(text) - begin
    )


def test_it_is_the_tree_of_its_description():
    texts = set()
    for seed in range(24):
        target, size = (
            toy_law(seed, 5, sharp=0.7),
            {
                "steps": 1 + seed % 3,
                "keep": 1 + seed // 3 % 2,
                "depth": 1 + seed % 4,
                "longest": 1 + seed % 2,
                "most": 1 + seed % 3,
            },
        )
        got = answer(ThoughtTreeSearch(plain(target), **size), seed)
        text, weight = rollouts_reference.thought_tree(target, 8, **size, rng=Rng.of_choice(seed))
        assert got.token_ids == text and got.score == pytest.approx(weight), (
            f"seed {seed}: {got}, by the description {text}"
        )
        texts.add(text)
    assert len(texts) > 10


def test_without_steps_a_bank_and_a_cue_it_is_greedy_decoding():
    for seed in range(12):
        target = toy_law(seed, 5)
        tree = answer(ThoughtTreeSearch(plain(target), depth=0, grounded=False), seed)
        assert tree.token_ids == answer(plain(ShapedTarget(target, GreedyRule())), seed).token_ids


def test_an_answer_is_of_the_bank():
    outside = 0
    for seed in range(20):
        target = toy_law(
            seed, 12, sharp=1.5
        )  # of its letters a, be and he make words that any answer may use
        bank_V = word_bank(target.vocab, target.vocab.eos, PROMPT)
        assert bank_V.nonzero()[:, 0].tolist() == [0, 1, 4, 7, 11]
        kept, free = (
            answer(ThoughtTreeSearch(plain(target), depth=0, grounded=g), seed)
            for g in (True, False)
        )
        assert all(bank_V[x] for x in kept.token_ids)
        outside += any(not bank_V[x] for x in free.token_ids)
    assert outside > 10


def test_a_bank_spells_words_in_all_forms_and_lets_figures_through():
    words = ToyWords(
        ("Paris", " paris", " Rome", " yes", "7", ", ", " the", "end", "on"), frozenset({7})
    )
    vocab = replace(toy_law(0, 9, eos=7).vocab, words=words)
    assert word_bank(vocab, frozenset({7}), (1,)).tolist() == [
        True,
        True,
        False,
        True,
        True,
        True,
        True,
        True,
        True,
    ]


def test_chances_are_those_of_the_steps_multiplied():
    for seed in range(10):
        target, depth, longest = toy_law(seed, 4, eos=-1), 1 + seed % 3, 1 + seed % 2
        r = answer(
            ThoughtTreeSearch(plain(target), 1, 1, depth, grounded=False, longest=longest), seed
        )
        ends = [longest * i for i in range(1, depth + 1)]
        means = [chance(target, r.token_ids[:e], e - longest) for e in ends] + [
            chance(target, r.token_ids, ends[-1])
        ]
        assert r.score == pytest.approx(math.exp(sum(means)))


def test_the_same_step_is_taken_once():
    target = toy_law(2, 2, sharp=9.0, eos=-1)  # it says one thing
    r = answer(ThoughtTreeSearch(plain(target), 4, 4, 2, longest=1), most=6)
    assert (
        r.stats.written == 4 + 4 + 4
    )  # each level one beginning with four draws, then four tokens of an answer


def test_steps_that_share_most_words_are_alike():
    a, b, c = (step_words(x) for x in ("Who wrote it?", "who wrote, it", "Who painted it?"))
    assert (
        is_same_step(a, b, 1.0)
        and not is_same_step(a, c, 0.5)
        and is_same_step(a, c, 0.4)
        and step_words("?!") == {"?!"}
    )


def test_beginnings_are_drawn_in_proportion_to_their_chances():
    some = [ThoughtChain(None, None, p) for p in (0.1, 0.2, 0.3, 0.4)]
    first = Counter(draw_thoughts(some, 1, Rng.of_choice(i))[0].chance for i in range(4000))
    off = sum((first[t.chance] - 4000 * t.chance) ** 2 / (4000 * t.chance) for t in some)
    assert off < 11.34  # chi-square, three degrees of freedom, one in a hundred
    assert {t.chance for t in draw_thoughts(some, 3, Rng.of_choice(1))} < {
        0.1,
        0.2,
        0.3,
        0.4,
    } and len(draw_thoughts(some, 9, Rng.of_choice(1))) == 4


def asking(seed):
    target = toy_law(seed, 6)
    return CausalLaw(
        target.network,
        replace(target.vocab, words=ToyWords(("a", "b", "yes", "no", "?", "."), frozenset({5}))),
        chunk=2,
    )


def test_a_step_is_weighed_by_yes_against_no():
    for seed in range(8):
        target = asking(seed)
        tree = ThoughtTreeSearch(plain(target), 1, 1, 1, check="?", grounded=False, longest=1)
        r = answer(tree, seed, ignore_eos=True)
        yes, no = (math.exp(chance(target, (r.token_ids[0], 4, x), 2)) for x in (2, 3))
        assert r.score == pytest.approx(yes / (yes + no) * math.exp(chance(target, r.token_ids, 1)))
        assert (
            r.stats.scored == len(r.token_ids) + 2
        )  # the step's last token once more, and the question


def test_an_answer_stands_behind_the_cue():
    r = answer(
        ThoughtTreeSearch(plain(asking(3)), 2, 2, 1, cue="??", longest=1),
        3,
        most=9,
        ignore_eos=True,
    )
    assert r.token_ids[1:3] == (4, 4) or r.token_ids[:2] == (4, 4)


def test_passages_are_ranked_by_their_formula():
    """BM25, word by word as it is published; what has no word of the question is never read."""
    texts = (
        "the cat sat on the mat",
        "a dog and a cat and a cat",
        "birds fly over the wide sea in the cold of the night",
        "cat",
        "nothing here",
    )
    told, question = [re.findall(r"\w+", t) for t in texts], "Where is THE cat?"
    mean = sum(map(len, told)) / len(told)

    def score(words):
        total = 0.0
        for q in ("where", "is", "the", "cat"):
            n = sum(q in other for other in told)
            rare = math.log(1 + (len(told) - n + 0.5) / (n + 0.5))
            f = words.count(q)
            total += rare * f * 2.2 / (f + 1.2 * (1 - 0.75 + 0.75 * len(words) / mean))
        return total

    want = [score(words) for words in told]
    some = PassageRanking(texts)
    assert some.passage_scores(question) == pytest.approx(want)
    order = sorted(range(5), key=lambda i: -want[i])
    assert some.best_passages(question, 9) == [texts[i] for i in order if want[i]] and want[4] == 0
    assert some.best_passages(question, 2) == [texts[i] for i in order[:2]]
    assert PassageRanking(()).best_passages(question, 2) == [] == some.best_passages("zebra", 2)


def telling(seed):
    target = toy_law(seed, 10, sharp=0.3)
    pieces = ("ada", "bo", " ", "x", "y", "\n", "=", "?", "yes", ".")
    return CausalLaw(target.network, replace(target.vocab, words=ToyWords(pieces, frozenset({9}))))


def test_a_sub_question_reads_its_passages_and_answers_itself():
    """Behind the step stand the lines that have its word, then the cue of its own answer, then the likeliest tokens up to the
    end of a line; the bank has the words that were read."""
    ada, bo = (0, 2, 3, 5), (1, 2, 4, 5)  # "ada x" and "bo y"
    read = {0: ada, 3: ada, 1: bo, 4: bo}
    seen, own = Counter(), 0
    for seed in range(40):
        target = telling(seed)
        fields = {"longest": 1, "most": 2, "passages": ("bo y", "ada x"), "own": "="}
        tree = ThoughtTreeSearch(plain(target), 1, 1, 1, **fields)
        r = answer(tree, seed, 16, ignore_eos=True)
        step, *rest = r.token_ids
        lines = read.get(step, ())
        seen[bool(lines)] += 1
        assert tuple(rest[: len(lines)]) == lines and rest[len(lines)] == 6
        said = rest[len(lines) + 1 :]
        before, greedy = (*PROMPT, step, *lines, 6), []
        while len(greedy) < 2 and 5 not in greedy:

            async def row(text=(*before, *greedy), target=target):
                return (
                    await target.open_session(text).score_draft(
                        Draft.chain_draft(text[-1]), ScoreRequest()
                    )
                ).logprob_row(0)

            greedy.append(int(run_coroutines([row()])[0].argmax()))
        assert said[: len(greedy)] == greedy
        own += len(set(greedy))
    assert seen[True] > 3 and seen[False] > 3 and own > 40
    short = answer(ThoughtTreeSearch(plain(telling(0)), 1, 1, 1, **fields), 0, 4, ignore_eos=True)
    assert len(short.token_ids) == 4 and 6 not in short.token_ids[1:2]  # no room: nothing is read
    assert build("stoc-tot", telling(0), None, {"passages": "bo y\\nada x\\n"})[0].passages == (
        "bo y",
        "ada x",
    )


def test_beginnings_that_grow_side_by_side_share_their_passes():
    """No more passes are booked than the network ran, whatever the tree asks for."""
    for seed in range(6):
        target, ran = telling(seed), []
        forward = target.network.forward
        target.network.forward = lambda queries, f=forward, ran=ran: ran.append(1) or f(queries)
        fields = {"longest": 2, "most": 3, "passages": ("bo y", "ada x"), "own": "="}
        tree = ThoughtTreeSearch(plain(target), 3, 2, 2, cue="=", **fields)
        booked = answer(tree, seed, 40, ignore_eos=True).stats.passes
        assert 8 < booked <= len(ran), (booked, len(ran))


def test_bad_fields():
    for fields, said in (
        ({"steps": 0}, "steps is 0: it must lie in 1 to 64"),
        ({"depth": 65}, "depth is 65"),
        ({"alike": 1.5}, "alike is 1.5: it must lie in 0 to 1"),
        ({"most": 0}, "most is 0"),
        ({"cue": "xyz"}, "cue is 'xyz': the model's tokenizer cannot spell it"),
        ({"cue": "ab", "language": UnrestrictedLanguage(3)}, "leaves no room for it"),
        ({"check": "ab"}, "cannot spell yes and no"),
        ({"passages": ("xyz",)}, "passages holds 'xyz': the model's tokenizer cannot spell it"),
        ({"own": "ab", "language": UnrestrictedLanguage(3)}, "leaves no room for them"),
        ({"found": 0}, "found is 0"),
    ):
        with pytest.raises(ValueError, match=said):
            ThoughtTreeSearch(plain(toy_law(0)), **fields)
