"""Seconds of a run that was made again: passes by the record's clock or the table of costs, and what stands between them."""

import pytest

from polydec.core.trace import PassedEvent
from polydec.lab.bench.recorded_target import ReplayRound, ReplayRun
from polydec.lab.bench.replay_times import RecordClock
from polydec.methods.economics.costs import PassCosts


def passes(*each, model="m", queries=1, gap=0.5):
    """Passes one behind another, (positions, seconds) each."""
    out, now = [], 0.0
    for positions, seconds in each:
        out.append(PassedEvent(0, model, now, seconds, positions, positions, queries))
        now += seconds + gap
    return out


def rounds(*drafted):
    """Behind a first one, whose pass fed the prompt as well."""
    return [ReplayRound(9, 0, 0), *(ReplayRound(10 + i, n, 0) for i, n in enumerate(drafted))]


def clock():
    """The prompt's pass, then four of one row and two of three."""
    ran = passes((9, 7.0), (1, 1.0), (1, 1.0), (1, 1.0), (1, 3.0), (3, 4.0), (3, 4.0))
    return RecordClock.of_rounds(rounds(0, 0, 0, 0, 2, 2), ran, "m")


def test_the_clock_leaves_out_the_prompt_and_counts_what_stands_between():
    assert clock().seconds == pytest.approx(14.0 + 5 * 0.5)
    assert clock().between == pytest.approx(0.5)


def test_the_recorded_passes_take_what_they_took():
    own = ReplayRun(rounds(0, 0, 0, 0, 2, 2), 0, 0.7)
    assert clock().predict_seconds(own, own, None) == clock().seconds
    slower = ReplayRun(own.rounds, 0, 1.4)
    assert clock().predict_seconds(own, slower, None) == pytest.approx(clock().seconds + 5 * 0.1)


def test_without_costs_a_pass_is_drawn_between_the_medians():
    own = ReplayRun(rounds(0, 0, 0, 0, 2, 2), 0, 0.7)
    other = ReplayRun(rounds(0, 1, 9), 0, 0.4)  # as quick a drafter: 0.1 a round
    assert clock().predict_seconds(own, other, None) == pytest.approx(1.0 + 2.5 + 4.0 + 2 * 0.5)


def test_a_slower_drafter_stands_between_the_passes_and_a_quicker_one_never_below_nothing():
    own = ReplayRun(rounds(0, 0), 0, 0.3)
    assert clock().predict_seconds(own, ReplayRun(rounds(0, 0, 0), 0, 1.2), None) == pytest.approx(
        3 + 2 * 0.7
    )
    assert (
        clock().predict_seconds(ReplayRun(rounds(0), 0, 5.0), ReplayRun(rounds(0, 0), 0, 0.0), None)
        == 2.0
    )


def test_passes_that_were_never_run_cost_what_the_table_says_on_this_machine():
    costs = PassCosts(rows_ms=(1.0, 1.5, 2.0, 2.5))
    own = ReplayRun(rounds(0), 0, 0.0)
    usual = (6 / 1 + 8 / 2) / 6  # seconds over milliseconds of the table, pass by pass
    four = clock().predict_seconds(own, ReplayRun(rounds(3), 0, 0.0), costs)
    assert four == pytest.approx(2.5 * usual)
    many = RecordClock.of_rounds(
        rounds(*[0] * 5, 2), passes((9, 7.0), *[(1, 2.0)] * 5, (3, 8.0)), "m"
    )
    assert many.predict_seconds(own, ReplayRun(rounds(0), 0, 0.0), costs) == pytest.approx(2.0)


def test_passes_of_a_draft_model_cost_what_they_cost_in_the_record_or_the_table():
    ran = passes((9, 7.0), (1, 1.0), (1, 1.0), (1, 1.0), gap=0.9)
    drafts = [PassedEvent(0, "d", p.start + p.seconds, 0.25, 1, 1, 1) for p in ran[1:3]]
    clock = RecordClock.of_rounds(rounds(0, 0, 0), [*ran, *drafts], "m")
    assert clock.between == pytest.approx(0.65) and clock.seconds == pytest.approx(4.8)
    own = ReplayRun(rounds(0), 2, 0.2)
    again = ReplayRun(rounds(0, 0), 4, 0.3)
    assert clock.predict_seconds(own, again, None) == pytest.approx(2.0 + 4 * 0.25 + 0.65)
    alone = RecordClock.of_rounds(rounds(0, 0, 0), ran, "m")
    # The machine took two seconds for each that the table has, for its own passes: so for a draft's.
    costs = PassCosts(rows_ms=(500.0, 750.0), draft_ms=250.0)
    assert alone.predict_seconds(own, again, costs) == pytest.approx(2.0 + 4 * 0.5 + 0.9)


@pytest.mark.parametrize(
    "ran",
    [
        passes((9, 7.0), (1, 1.0), model="another"),
        passes((9, 7.0), (1, 1.0), queries=2),
        [],
    ],
    ids=["another model", "in company", "no pass"],
)
def test_without_passes_of_its_own_there_is_no_clock(ran):
    assert RecordClock.of_rounds(rounds(0), ran, "m") is None


def test_without_rounds_there_is_no_clock():
    assert RecordClock.of_rounds([], passes((1, 1.0)), "m") is None
