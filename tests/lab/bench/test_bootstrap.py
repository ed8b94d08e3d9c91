"""benchmarks/bootstrap.py: the same tasks give the same interval as before, in every table that has one."""

import bootstrap
import engine_table
import front_page
import numpy as np
import pytest
import speculation_tables
from front_page import Turn

OURS = [(28, 2.52), (33, 1.788), (27, 0.635), (15, 1.458), (24, 0.613), (19, 0.622)]
THEIRS = [(10, 2.131), (39, 1.086), (14, 2.935), (20, 2.744), (32, 1.481), (34, 1.733)]
"""Work and seconds of six tasks on two sides, drawn once; what the tables said of them stands below."""


def test_of_replayed_speeds():
    ratio = speculation_tables.ratio(dict(enumerate(OURS)), dict(enumerate(THEIRS)))
    assert ratio.value == pytest.approx(1.553977802074947, rel=1e-12)
    assert ratio.interval == pytest.approx((0.8807541403195149, 3.3213160761652136), rel=1e-12)


def test_of_engines():
    found = engine_table.ratio_interval([a for a, _ in OURS], [a for a, _ in THEIRS])
    wanted = (0.7980769230769231, 0.6544117647058824, 2.3642857142857143)
    assert found == pytest.approx(wanted, rel=1e-12)


def test_of_sides():
    ours, theirs = (
        [Turn(work, s, 10, 4, right, ((1,),)) for (work, s), right in zip(side, rights)]
        for side, rights in ((OURS, (1, 0, 1, 1, 0, 1)), (THEIRS, (0, 0, 1, 0, 1, 1)))
    )
    line = front_page.compare_sides("row", "one", "other", ours, theirs)
    assert (line["speed"], line["low"], line["high"]) == (1.554, 0.881, 3.321)
    assert (line["points low"], line["points high"]) == (-33.3, 66.7)


def test_tasks_are_drawn_whole_and_the_same_ones_each_time():
    rows = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    drawn = bootstrap.drawn_again(rows, 500)
    assert drawn.shape == (500, 3, 2) and (drawn[..., 1] == 10 * drawn[..., 0]).all()
    assert (drawn[..., 0] == bootstrap.drawn_again(rows[:, 0], 500)).all()
    low, high = bootstrap.central_interval(np.arange(1001))
    assert (low, high) == (25.0, 975.0)
