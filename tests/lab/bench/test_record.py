"""A bench that goes on where it stopped, and what it says of answers, waiting and energy."""

import json
from types import SimpleNamespace

import pytest

from polydec.base.errors import FileError
from polydec.lab.bench import answers, bench_record, energy, measure
from polydec.lab.bench.bench_record import BenchCell
from polydec.lab.bench.measure import BenchRun, BenchTask, MethodSetting
from polydec.laws.shapers.sampling import Sampling

SAID = {"models": ["a"], "versions": {"torch": "2"}, "settings": {}, "prompts": "abc"}
HERE = BenchCell("a", 1, 0.0)
METHODS = [
    MethodSetting("plain", {}),
    MethodSetting("prompt-lookup", {}),
    MethodSetting("auto", {}),
]
TASKS = [BenchTask("x", ("one",)), BenchTask("y", ("two",))]


def made(task, repeat, seconds=1.0, **more):
    counts = {"passes": 10, "positions": 20, "drafts": 4, "accepted": 2}
    return BenchRun(
        task, repeat, 9, seconds, seconds + 0.5, 10, ids=((1, 2),), distinct=1.0, **counts, **more
    )


@pytest.fixture
def calls(monkeypatch):
    """What is run, in place of decoding."""
    some = []

    def run(lm, method, task, at, repeat, **request):
        some.append((method.label, at, repeat))
        return made(at, repeat, 1.0 + len(some) / 8, firsts=(0.1,), gaps=(0.01, 0.02))

    monkeypatch.setattr(measure, "run_task", run)
    return some


def go(path, stop=None):
    """A bench that is killed behind so many runs."""
    left = [stop]

    def keep(kept, label, run):
        kept.write_run(HERE, label, run)
        if left[0] is not None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

    with bench_record.open_bench_record(path, SAID) as kept:
        runs = kept.complete_runs(HERE, [m.label for m in METHODS])
        return measure.measure_methods(
            SimpleNamespace(),
            METHODS,
            TASKS,
            sampling=Sampling(),
            max_tokens=4,
            repeats=2,
            into=runs,
            keep=lambda label, run: keep(kept, label, run),
        )


def test_an_interrupted_bench_goes_on_and_runs_whole_turns(tmp_path, calls):
    at = tmp_path / "runs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        go(at, stop=5)  # one turn of three, and two of the next
    calls.clear()
    runs = go(at)
    fresh = calls[1:]  # behind the first, which warms up
    assert len(fresh) == 9 and not any((a, n) == (0, 0) for _, a, n in fresh)
    assert {(a, n) for _, a, n in fresh} == {(1, 0), (0, 1), (1, 1)}
    assert all(len(runs[m.label]) == 4 for m in METHODS)
    calls.clear()
    assert go(at) == runs and not calls  # nothing is left, and nothing is run


def test_a_line_that_was_cut_short_is_measured_again(tmp_path, calls):
    at = tmp_path / "runs.jsonl"
    whole = go(at)
    at.write_bytes(at.read_bytes()[:-30])
    calls.clear()
    again = go(at)
    assert len(calls) == 4  # a turn of three and what warms up
    assert {k: len(v) for k, v in again.items()} == {k: len(v) for k, v in whole.items()}
    assert len(at.read_text().strip().split("\n")) == 1 + 12 + 2


@pytest.mark.parametrize(
    "change, says",
    [
        ({"versions": {"torch": "3"}}, "versions was"),
        ({"models": ["b"]}, "models was"),
        ({"prompts": "abd"}, "prompts was"),
        ({"more": 1}, "more was null, now it is 1"),
    ],
)
def test_unlike_runs_are_not_mixed(tmp_path, calls, change, says):
    at = tmp_path / "runs.jsonl"
    go(at)
    before = at.read_bytes()
    with (
        pytest.raises(FileError, match=says),
        bench_record.open_bench_record(at, {**SAID, **change}),
    ):
        pass
    assert at.read_bytes() == before


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", '{"bench": 1}', '{"bench": 9, "identity": {}}', "\x00", '{"bench": true}'],
)
def test_what_is_no_record_is_refused_and_left_alone(tmp_path, line):
    at = tmp_path / "runs.jsonl"
    at.write_text(line + "\n")
    with pytest.raises(FileError), bench_record.open_bench_record(at, SAID):
        pass
    assert at.read_text() == line + "\n"


@pytest.mark.parametrize(
    "field, value",
    [
        ("seconds", -1.0),
        ("seconds", 1e300),
        ("ids", [["a"]]),
        ("gaps", [None]),
        ("passes", 1.5),
        ("whole_seconds", 0.0),
        ("tried_at", [0]),
        ("right", [2]),
    ],
)
def test_a_line_with_other_kinds_of_values_is_refused(tmp_path, calls, field, value):
    at = tmp_path / "runs.jsonl"
    go(at)
    first, second, *rest = at.read_text().split("\n")
    line = json.loads(second)
    line["run"][field] = value
    at.write_text("\n".join([first, json.dumps(line), *rest]))
    with (
        pytest.raises(FileError, match=rf"line 2 of record .*{field}"),
        bench_record.open_bench_record(at, SAID),
    ):
        pass


def test_another_process_is_kept_out(tmp_path):
    at = tmp_path / "runs.jsonl"
    with (
        bench_record.open_bench_record(at, SAID),
        pytest.raises(FileError, match="another process"),
        bench_record.open_bench_record(at, SAID),
    ):
        pass


@pytest.mark.parametrize(
    "answer, text, is_right",
    [
        ("She has 3 left.\n#### 1,018", "so 4 and then 1018.", True),
        ("#### 18", "18 eggs, and 4 are left", False),
        (17.0, "The answer is $17", True),
        ("The Rhine.", "It is the rhine, I think", True),
        ("The Rhine.", "It is the Elbe", False),
        ("Rhine", "Rhineland", False),
        (5, "nothing", False),
    ],
)
def test_answers_that_are_wanted(answer, text, is_right):
    assert answers.has_right_answer(answers.wanted_answer(answer), text) is is_right


@pytest.mark.parametrize("answer", [None, "", "…", "word " * 13, "####"])
def test_what_no_text_can_be_held_against_is_not_judged(answer):
    assert answers.wanted_answer(answer) is None


def test_what_is_said_of_runs_beside_their_speed():
    runs = [
        made(
            0, n, firsts=(0.2,), gaps=(0.1, 0.3), accepted_at=(3, 1), tried_at=(4, 2), right=(True,)
        )
        for n in range(3)
    ] + [made(1, 0, accepted_at=(1,), tried_at=(2,), target_seconds=1.5, right=(False,))]
    said = measure.further_figures(runs)
    assert said["accepted_at"] == [10 / 16, 3 / 16] and said["of_those_tried"] == [10 / 14, 0.5]
    assert said["time_to_first_token"] == 0.2 and said["gap"] == pytest.approx(0.2)
    assert said["right"] == 0.5 and said["judged"] == 2, "a repetition is no further answer"
    assert said["target_share"] == 0.25 and said["rest_share"] == 0.75
    assert said["joules_per_token"] is None
    assert measure.further_figures([made(0, 0, joules=20.0)])["joules_per_token"] == 2.0


def test_energy_where_the_machine_tells_it(tmp_path):
    assert energy.read_energy_counters(tmp_path) is None
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("100000000\n")
    (package / "energy_uj").write_text("90000000\n")
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the package
    before = energy.read_energy_counters(tmp_path)
    (package / "energy_uj").write_text("5000000\n")
    assert energy.joules_between(before, energy.read_energy_counters(tmp_path)) == pytest.approx(
        15.0
    )
    (package / "energy_uj").write_text("what?")
    assert energy.read_energy_counters(tmp_path) is None
