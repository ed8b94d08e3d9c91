"""benchmarks/front_page.py compares sides on the same tasks, by all tasks together and by points of a hundred."""

from dataclasses import replace

import front_page
import pytest
from front_page import Turn

import polydec
from polydec.lab.bench.measure import BenchTask, MethodSetting


def turn(work, seconds, right=0, ids=((1, 2),)):
    return Turn(work, seconds, 10, 4, right, ids)


def test_speed_is_of_all_tasks_together_and_its_interval_holds_it():
    ours = [turn(10, 1.0), turn(30, 2.0), turn(8, 1.0)]
    theirs = [turn(10, 2.0), turn(30, 3.0), turn(8, 1.0)]
    line = front_page.compare_sides("many", "one", "other", ours, theirs)
    assert line["speed"] == round((48 / 4) / (48 / 6), 3)
    assert line["median"] == 1.5
    assert 1.0 <= line["low"] < line["speed"] < line["high"] <= 2.0
    assert line["like the other"] == 3
    beside_itself = front_page.compare_sides("many", "one", "one", ours, ours)
    assert [beside_itself[key] for key in ("speed", "low", "high", "median")] == [1.0] * 4


def test_right_answers_are_told_in_points_over_the_other_side():
    ours = [turn(1, 1.0, right=1), turn(1, 1.0, right=1), turn(1, 1.0), turn(1, 1.0)]
    theirs = [turn(1, 1.0, right=1), turn(1, 1.0), turn(1, 1.0), turn(1, 1.0, ids=((3,),))]
    line = front_page.compare_sides("better", "one", "other", ours, theirs)
    assert (line["right"], line["points"]) == (50.0, 25.0)
    assert line["points low"] <= 25.0 < line["points high"]
    assert line["like the other"] == 3


@pytest.mark.parametrize("name", list(front_page.ROWS))
def test_each_row_compares_sides_that_it_measures(name):
    row = front_page.ROWS[name]
    labels = [side.label for side in row.sides]
    assert len(set(labels)) == len(labels)
    assert row.bases and set(row.bases) <= set(labels)


def test_the_methods_of_a_side_have_as_many_requests_each():
    both, each = front_page.ROWS["served"].sides
    assert (both.at_once, each.at_once) == (8, 4)
    for side in (both, each):
        asked = [side.request_method(at, 8).name for at in range(8)]
        assert asked == ["plain"] * 4 + ["auto"] * 4


def test_one_engine_for_two_methods_writes_what_an_engine_for_each_writes():
    lm = polydec.load("zoo:tiny", dtype="float32")
    task = BenchTask("stories", ("Once upon a time", "A fox saw"), raw=True)
    row = front_page.ROWS["served"]
    copying = (MethodSetting("prompt-lookup", {}),)
    both, each = (
        front_page.take_turn(
            lm, row, replace(side, at_once=count, further_methods=copying), task, 6, 0
        )
        for side, count in zip(row.sides, (2, 1), strict=True)
    )
    assert both.ids == each.ids and len(both.ids) == 2


def test_at_once_or_one_after_another_the_texts_are_the_same():
    lm = polydec.load("zoo:tiny", dtype="float32")
    task = BenchTask("stories", ("Once upon a time", "A fox saw"), raw=True)
    row = front_page.ROWS["many"]
    alone, together = (
        front_page.take_turn(
            lm, row, front_page.side_of("plain", "plain", at_once=count), task, 6, 0
        )
        for count in (1, 2)
    )
    assert alone.ids == together.ids and len(alone.ids) == 2
    assert alone.work == together.work == 12
    assert together.passes == alone.passes
