"""Answers that go from fine to coarse: matches and weights."""

import math

import pytest
from studies.granola import Granularity, f1

BORN = (("4 August 1961", "August 4, 1961"), ("August 1961",), ("1961",), ("1960s", "the sixties"))


def test_the_finest_level_counts():
    g = Granularity(least=1.0)
    said = ("the 4 August 1961.", "August 1961", "1961", "the 1960s", "1962", "I don't know.", "")
    assert [g.level(s, BORN) for s in said] == [0, 1, 2, 3, None, None, None]


def test_words_in_common_may_be_enough():
    assert f1("4 August", "4 August 1961") == pytest.approx(0.8) and f1("x", "y") == 0.0
    assert (
        Granularity().level("4 August", BORN) == 0
        and Granularity(least=0.9).level("4 August", BORN) is None
    )


def test_a_finer_answer_never_weighs_less_and_without_fading_all_weigh_the_same():
    said, gold = ["4 August 1961", "August 1961", "1961", "1960s", "never"], [BORN] * 5
    found = [Granularity(1.0).figures([s], [BORN])["informativeness"] for s in said]
    assert found == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.0])
    flat = Granularity(1.0, fade=0.0).figures(said, gold)
    assert flat["informativeness"] == flat["accuracy"] == pytest.approx(0.8)
    assert flat["knowledge gap"] == pytest.approx(0.6) and flat[
        "standard accuracy"
    ] == pytest.approx(0.2)


def test_bad_fields():
    for options, said in (({"least": 0.0}, "least is 0.0"), ({"fade": math.nan}, "fade is nan")):
        with pytest.raises(ValueError, match=said):
            Granularity(**options)
    with pytest.raises(ValueError, match="1 answers to 0 questions"):
        Granularity().figures(["x"], [])
