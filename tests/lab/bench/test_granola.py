"""Answers that go from fine to coarse: matches and weights."""

import math

import pytest
from studies.granola import COARSER, Granularity, enriched, f1, listed

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


def test_an_answer_gets_coarser_levels_that_the_question_does_not_give_away():
    asked = []

    def ask(prompt):
        asked.append(prompt)
        if prompt.startswith(COARSER[:10]) and "What is known" in prompt:
            return " a town in Hawaii\n3. Honolulu.\n4) the USA\n- a place\n5. The USA\n6. Earth\n\nMore"
        return " A place.\n2. somewhere"

    gold = enriched("Where was he born?", ("Honolulu",), "capital of Hawaii, USA", ask)
    assert gold == (("Honolulu",), ("a town in Hawaii",), ("the USA",), ("Earth",))
    assert enriched("Where?", ("Honolulu",), "…", ask, most=2) == gold[:2]
    assert "capital of Hawaii, USA" in asked[1] and "Hawaii" not in asked[0]
    assert enriched("Where?", ("x", "y"), "", lambda prompt: "Y\nX.\n") == (("x", "y"),)
    assert Granularity(1.0).level("town in Hawaii", gold) == 1
    assert listed("\n1. a\n2) b.\n\n3. c") == ["a", "b"]


def test_bad_fields():
    for options, said in (({"least": 0.0}, "least is 0.0"), ({"fade": math.nan}, "fade is nan")):
        with pytest.raises(ValueError, match=said):
            Granularity(**options)
    with pytest.raises(ValueError, match="right has 0 spellings"):
        enriched("Where?", (), "", str)
    with pytest.raises(ValueError, match="1 answers to 0 questions"):
        Granularity().figures(["x"], [])
