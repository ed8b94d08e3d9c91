"""Gaps of an answer that a model which continues texts fills, one run of its method a gap."""

import pytest

from gap_model import write_gap_model
from polydec import Ask, Engine, Regex, generate, load
from polydec.base.errors import RequestError
from polydec.request.gap_decoder import GapFillingDecoder, repetition_start
from polydec.request.gap_marks import find_gap_marks, split_at_gaps

TEXT = "the[[3]] is blue and[[4]] green"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load(str(write_gap_model(tmp_path_factory.mktemp("gap") / "model")), dtype="torch")


def ids(lm, text, special=False):
    return lm.checkpoint.text.encode(text, special=special)


def filled_by_hand(lm, prompt, text, sizes, **fields):
    """The ids that fill each gap, by a request of its own for each."""
    marks = find_gap_marks(lm.checkpoint.text)
    parts = text.split("[[]]")
    row = (*ids(lm, prompt, special=True), *ids(lm, parts[0]))
    for mark, part in zip(marks.gaps, parts[1:], strict=False):
        row += (mark, *ids(lm, part))
    others = tuple(lm.checkpoint.lm.vocab.eos - {marks.filled}) + marks.gaps
    sampling = lm.sampling_with(bad_token_ids=others)
    fills = []
    for mark, size in zip(marks.gaps, sizes, strict=False):
        row += (mark,)
        made = generate(lm, row, max_tokens=size, sampling=sampling, **fields).choices[0]
        fills.append(tuple(x for x in made.token_ids if x != marks.filled))
        row += (*fills[-1], marks.filled)
    return fills


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "auto"])
def test_gaps_are_filled_in_order_behind_what_is_filled(lm, method):
    made = generate(lm, "a", infill=TEXT, raw=True, method=method).choices[0]
    first, second = filled_by_hand(lm, "a", "the[[]] is blue and[[]] green", (3, 4))
    assert made.token_ids[:-1] == (
        *ids(lm, "the"),
        *first,
        *ids(lm, " is blue and"),
        *second,
        *ids(lm, " green"),
    )
    assert made.token_ids[-1] in lm.checkpoint.lm.vocab.eos and made.finish_reason == "stop"
    assert made.text.startswith("the") and made.text.endswith(" green")
    assert " is blue and" in made.text


def test_answers_and_gaps_have_chance_of_their_own(lm):
    made = generate(lm, "a", infill="[[9]] sea[[9]]", raw=True, n=3, sampling={"temperature": 3.0})
    at = ids(lm, " sea")
    halves = set()
    for choice in made.choices:
        cut = next(
            i for i in range(len(choice.token_ids)) if choice.token_ids[i : i + len(at)] == at
        )
        halves |= {choice.token_ids[:cut], choice.token_ids[cut + len(at) : -1]}
    assert len(halves) == 6
    again = generate(lm, "a", infill="[[9]] sea[[9]]", raw=True, n=3, sampling={"temperature": 3.0})
    assert [c.token_ids for c in again.choices] == [c.token_ids for c in made.choices]


def test_a_gap_ends_where_it_repeats_what_stands_behind_it(lm):
    fill, behind = (1, 2, 3, 4, 5, 6), (3, 4, 7)
    assert [repetition_start(fill, behind, n) for n in (0, 1, 2, 3, 4)] == [6, 2, 2, 6, 6]
    assert repetition_start((3, 4), behind, 2) == 0 and repetition_start((), behind, 1) == 0
    # The model is made to write "qzq", letter by letter, in front of "zq".
    made = {
        count: generate(
            lm, "a", infill="the[[3]]zq", raw=True, constraint=Regex("qzq"), infill_repeat=count
        ).choices[0]
        for count in (0, 1, 2, 3)
    }
    assert [made[count].text for count in made] == ["theqzqzq", "theqzq", "theqzq", "theqzqzq"]


def test_a_stop_string_ends_the_answer_and_no_gap_behind_it_is_shown(lm):
    made = generate(lm, "a", infill="the sea[[2]] is[[3]]", raw=True, stop=["sea"]).choices[0]
    assert made.text == "the " and made.finish_reason == "stop"


def test_a_constraint_holds_in_each_gap_and_not_around_it(lm):
    made = generate(
        lm, "a", infill="the[[2]] is[[2]].", raw=True, constraint=Regex("[0-9]{1,2}")
    ).choices[0]
    assert made.text.startswith("the") and made.text.endswith(".")
    first, _, second = made.text.removeprefix("the").removesuffix(".").partition(" is")
    assert first.isdigit() and second.isdigit()


def test_ids_have_none_for_each_token_of_a_gap(lm):
    given = [*ids(lm, "the"), None, None, None, *ids(lm, " is blue and"), *[None] * 4]
    by_ids = generate(lm, "a", infill=[*given, *ids(lm, " green")], raw=True).choices[0]
    assert by_ids.text == generate(lm, "a", infill=TEXT, raw=True).choices[0].text
    assert split_at_gaps((1, None, None, 2, None)) == ([(1,), (2,), ()], [2, 1])


def test_log_probabilities_of_the_prompt_stand_beside(lm):
    plan = Engine(lm).submit(Ask("a sea", raw=True, infill=TEXT, prompt_logprobs=1)).plan
    assert isinstance(plan.decoder.decoder, GapFillingDecoder) and plan.request.guard is None
    made = generate(lm, "a sea", infill=TEXT, raw=True, prompt_logprobs=1)
    assert len(made.prompt_logprobs) == len(ids(lm, "a sea", special=True))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"infill": "the sea"}, "infill has no gap"),
        ({"infill": "a[[1]] " * 9}, "infill has 9 gaps, and .* has marks for 8"),
        ({"infill": "a[[3:[a-z]+]]"}, "infill has a gap with a pattern"),
        ({"infill": "a[[3]]", "logprobs": 2}, "logprobs is given beside infill"),
        ({"infill_repeat": 8}, "infill_repeat is 8: it is of gaps"),
        ({"infill": "a[[3]]", "infill_repeat": 65}, "infill_repeat is 65: it must lie in 0 to 64"),
        ({"infill": "a[[3]]", "best_of": 2}, "best_of is given beside infill"),
        ({"infill": "a[[3]]", "units": "bytes"}, "units is given beside infill"),
        ({"infill": "a[[3]]", "ignore_eos": True}, "ignore_eos is given beside infill"),
        ({"infill": "a[[3]]", "reuse": "prefix"}, "reuse is given beside infill"),
        ({"infill": "a[[60]]"}, "infill takes 65 tokens with the marks of its gaps"),
        ({"infill": "a[[999999]]" * 9}, r"infill has 9000\d+ tokens, gaps included"),
        ({"infill": [1, None, 10**6]}, r"infill\[2\] is 1000000"),
    ],
)
def test_what_cannot_be_filled_is_one_sentence(lm, fields, said):
    with pytest.raises(RequestError, match=said):
        Engine(lm).submit(Ask("a", raw=True, **fields))


@pytest.mark.parametrize("text", ["[[1:" * 50_000, "[[" * 100_000, "[[999999]]" * 50_000])
def test_a_hostile_text_is_refused_at_once(lm, text):
    """Each would take minutes where every bracket is a search to the text's end, or gaps are laid out before they are
    counted."""
    with pytest.raises(RequestError):
        Engine(lm).submit(Ask("a", raw=True, infill=text))
