"""What answers agree in, by its rules; and the search that says it."""

from dataclasses import replace
from itertools import permutations

import pytest

from polydec import generate, load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import ToyWords, toy_law
from polydec.laws.shapers.logit_bias import LogitBiasRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop import drag
from polydec.methods.search.loop.common_statement import (
    AnswerAgreement,
    asks_when,
    parse_name_hierarchy,
)
from polydec.methods.search.loop.drag import ResponseAggregationSearch
from polydec.methods.search.loop.model_answers import write_greedy_reply
from polydec.models.sessions.lm import CausalLaw
from rollouts_reference import DATES, PROMPT, plain, scored, speaking, tries

PLACES = parse_name_hierarchy(
    "Lyon < France; Paris < France; France < Europe; Bonn < Germany; Germany < Europe"
)
AGREED = (
    (("Aug 4 1961", "Aug 5 1961", "1961-08"), "August 1961"),
    (("4th of August 1961", "August 4, 1961", "1961-08-04", "5 May 1970"), "4 August 1961"),
    (("May 1961", "June 1962", "1969"), "1960s"),
    (("1961", "1975", "3 May 1988"), "20th century"),
    (("1960s", "1970s", "19th century"), "20th century"),
    (("1945", "1945", "1946", "1944", "1944"), "1940s"),  # years, not numbers: never "about 1950"
    (("1945",), "1945"),
    (("in 1945", "May 1945", "1946"), "1945"),
    (("1945", "1951", "1968"), "20th century"),
    (("1234", "1,240", "1180"), "about 1200"),  # 1,240 is no year, so none of them is one
    (("1234", "980", "1180"), "about 1200"),
    (("3.14", "3.16", "7"), "about 3"),  # two of three agree in it; 3.1 and 3.2 have one each
    (("Lyon", "Paris", "Bonn"), "France"),
    (("Lyon", "Bonn"), "Europe"),
    (("Nice, France", "Lyon", "Bonn"), "France"),
    (("blue", "green"), None),
    (("blue", "blue", "green"), "blue"),
    (("blue", "green", "red"), None),
    (("31 Foo 1961", "99 May 1961"), None),
    (("", ""), None),
    (("", "x"), "x"),
    (("x",), "x"),
    (("4 May 1961",), "4 May 1961"),
)


@pytest.mark.parametrize(("answers", "said"), AGREED)
def test_what_answers_agree_in_whatever_their_order(answers, said):
    for order in permutations(answers):
        found = AnswerAgreement(within=PLACES).of_answers(order)
        assert (None if found is None else found.said) == said


def test_counts_are_no_years():
    """Behind a question after a count bare numbers are numbers; one date among them makes years of all."""
    counted = AnswerAgreement(years=False)
    for answers, said in (
        (("1200", "1234", "1290"), "about 1200"),
        (("1945", "1945", "1946"), "1945"),
        (("1945", "May 1946", "1951"), "1940s"),
    ):
        assert counted.of_answers(answers).said == said
    assert AnswerAgreement().of_answers(("1200", "1234", "1290")).said == "13th century"


@pytest.mark.parametrize(
    ("question", "when"),
    [
        ("When was Obama born?", True),
        ("In which year did it open?", True),
        ("How many people live in Ely?", False),
        ("How many years after the year 1200 did he live?", False),
        ("What is its height in metres?", False),
        ("", False),
    ],
)
def test_what_asks_when(question, when):
    assert asks_when(question) is when


@pytest.mark.parametrize("years", [None, True, False])
def test_the_prompt_says_whether_bare_numbers_are_years(years):
    target = toy_law(0, 6)
    words = ToyWords(("1200", "1234", "1290", "how many?", "when?", ""), target.vocab.eos)
    target = CausalLaw(target.network, replace(target.vocab, words=words), chunk=2)
    for prompt, when in (((3,), False), ((4,), True)):
        how = ResponseAggregationSearch(plain(target), years=years)
        wanted = when if years is None else years
        assert how._has_years(Request(prompt, 2)) is wanted


def test_a_higher_share_is_never_more_exact():
    answers = ("4 May 1961", "4 May 1961", "9 May 1961", "1 June 1961", "1965", "1832")
    found = [AnswerAgreement(share).of_answers(answers) for share in (0.3, 0.5, 0.6, 0.8, 1.0)]
    assert [f and f.said for f in found] == ["4 May 1961", "May 1961", "1961", "1960s", None]


def test_what_lies_within_what_is_read_or_refused():
    assert parse_name_hierarchy(" a<B ; b < c;") == {"a": "B", "b": "c"}
    for text, said in (
        ("a", "within has 'a'"),
        ("a < b; a < c", "'a' twice"),
        ("a < b; b < a", "within itself"),
        ("a < b < c", "write it as"),
    ):
        with pytest.raises(ValueError, match=said):
            parse_name_hierarchy(text)


def answer(decoder, seed, most=2, **fields):
    return run_coroutines([answer_one(decoder, Request(PROMPT, most, seed=seed, **fields))])[0]


def test_it_says_what_its_draws_agree_in():
    seen = set()
    for seed in range(60):
        target = speaking(seed)
        drawn = tries(target, seed)
        texts = [r.token_ids for r in drawn if r.finish_reason == "stop"]
        answers = [target.vocab.words.decode(t) for t in texts]
        if len(texts) < 3 or not any(answers):
            continue
        found = AnswerAgreement().of_answers(answers)
        got = answer(ResponseAggregationSearch(plain(target), tries=3), seed)
        said = "I don't know" if found is None else found.said
        assert (
            target.vocab.words.decode(got.token_ids).lower() == said.lower()
            and got.finish_reason == "stop"
        )
        assert (
            got.score
            == sum(found in ladder for ladder in AnswerAgreement().support_ladders(answers)) / 3
        )
        seen.add((said, got.token_ids in texts))
    assert len({said for said, _ in seen}) >= 3 and {drawn for _, drawn in seen} == {True, False}


class Lines(ToyWords):
    """Spells any text, line by line: a line that it has no token for as token 0."""

    def encode(self, text, special=True):
        try:
            return super().encode(text, special=special)
        except ValueError:
            return tuple(DATES.index(x) if x in DATES else 0 for x in text.split("\n"))


def asking(seed):
    """As `speaking`, but less fond of ending, and it can be asked anything."""
    network, plain_vocab = (lm := speaking(seed, sharp=2.0).target).network, lm.vocab
    vocab = replace(plain_vocab, words=Lines(DATES, plain_vocab.eos))
    return ShapedTarget(CausalLaw(network, vocab, chunk=2), LogitBiasRule({len(DATES) - 1: 1.0}))


def test_the_model_itself_may_say_what_they_agree_in():
    """By a loop of its own: the draws alone, then greedy tokens behind the prompt, the answers and the question."""
    differs = 0
    for seed in range(200):
        target = asking(seed)
        words = target.vocab.words
        texts = [r.token_ids for r in tries(target, seed) if r.finish_reason == "stop"]
        answers = [words.decode(t) for t in texts]
        if len(texts) < 3 or len({a.lower() for a in answers if a}) < 2:
            continue
        prompt = (*PROMPT, *words.encode("all:\n" + "\n".join(filter(None, answers))))
        first = int(law_behind(target, prompt).argmax())
        said = words.decode((first,)) or AnswerAgreement().of_answers(answers)
        said = getattr(said, "said", said) or "I don't know"
        got = answer(ResponseAggregationSearch(plain(target), tries=3, ask="all:\n{answers}"), seed)
        if (
            first in target.vocab.eos
            or int(law_behind(target, (*prompt, first)).argmax()) in target.vocab.eos
        ):
            assert words.decode(got.token_ids).lower() == said.lower()
            differs += said != getattr(
                AnswerAgreement().of_answers(answers), "said", "I don't know"
            )
    assert differs >= 2


def test_stop_strings_end_answers_and_not_what_the_model_says_of_them(monkeypatch):
    lm = load("zoo:tiny", draft=None, ngrams=None, threads=1)
    prompt = lm.encode_prompt("The king rode to the", raw=True)
    seen = []

    async def noted(method, choice, asked, most, rng):
        reply, spent = await write_greedy_reply(method, choice, asked, most, rng)
        seen.append((asked, reply))
        return reply, spent

    monkeypatch.setattr(drag, "write_greedy_reply", noted)
    fields = {"options": {"published": True}, "max_tokens": 8, "stop": ["e"]}
    for seed in range(3):
        generate(lm, prompt, method="drag", sampling={"temperature": 1.0}, seed=seed, **fields)
    assert seen
    for asked, reply in seen:
        own = generate(lm, (*prompt, *asked), method="plain", max_tokens=8).token_ids
        whole = own[:-1] if own[-1] in lm.checkpoint.lm.vocab.eos else own
        # All that the model says, or its first line that is not empty.
        lines = lm.checkpoint.text.decode(reply).lstrip()
        assert reply == whole or ("\n" in lines and reply == whole[: len(reply)])
    assert any("e" in lm.checkpoint.text.decode(reply) for _, reply in seen)


def law_behind(target, text):
    return scored(target, text).logprob_row(0)


def test_the_model_is_not_asked_where_all_agree_or_there_is_no_room():
    for seed in range(30):
        target, same = asking(seed), asking(seed)
        for fields in (
            {"tries": 1, "ask": "{answers}"},
            {"tries": 3, "ask": "{answers}", "context": 5},
        ):
            rules = answer(ResponseAggregationSearch(plain(target), tries=fields["tries"]), seed)
            asked = answer(ResponseAggregationSearch(plain(same), **fields), seed)
            assert asked.token_ids == rules.token_ids and asked.stats == rules.stats


def test_what_cannot_be_written_is_not_said():
    for seed in range(20):
        target = toy_law(seed, 6, sharp=0.4)  # it spells no "I don't know"
        got = answer(ResponseAggregationSearch(plain(target), tries=2), seed, most=3)
        assert got.token_ids and got.score in (0.0, 0.5, 1.0)
        longer = answer(ResponseAggregationSearch(plain(speaking(seed)), tries=2), seed, most=1)
        assert longer.finish_reason in ("stop", "length") and len(longer.token_ids) == 1


def test_one_try_has_the_law_of_the_target():
    for seed in range(3):
        target = toy_law(seed, 3)
        law = law_of(
            lambda rng, t=target: answer_one(
                ResponseAggregationSearch(plain(t), tries=1), Request(PROMPT, 3), rng
            )
        )
        assert text_law_distance(law, target_law(target, PROMPT, 3)) < 1e-9


def test_bad_fields():
    with pytest.raises(ValueError, match="tries is 0: it must lie in 1 to 256"):
        ResponseAggregationSearch(plain(toy_law(0)), tries=0)
    with pytest.raises(ValueError, match=r"ask is 'x': it must hold \{answers\}"):
        ResponseAggregationSearch(plain(speaking(0)), ask="x")
    with pytest.raises(ValueError, match=r"share is 0\.0: it must be above 0, to 1"):
        AnswerAgreement(0.0)
