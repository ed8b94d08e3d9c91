"""Damaged files of every block type and family: each loads and runs, or gives one clear error; a crash would be seen."""

from __future__ import annotations

import sys

import mutate
import pytest

from polydec.models.native.library import native_step_availability

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)


def clean(count, seed, place):
    tally = mutate.watched(count, mutate.worker(count, seed, place))
    assert not tally.wrong and not tally.vague, [*tally.wrong, *tally.vague]
    ran, refused = sum(tally.ran.values()), sum(tally.refused.values())
    assert ran + refused == count and ran > count / 20 and refused > count / 2


def test_mutations(tmp_path):
    clean(150, 1, tmp_path)


@pytest.mark.slow
def test_ten_thousand_mutations(tmp_path):
    clean(10_000, 2, tmp_path)


@pytest.mark.parametrize(
    "fault, said",
    [
        ("os.abort()", "the process ended with -6"),
        ("time.sleep(60)", "it takes more than 3 s"),
        ("case['end'] = 'wrong'; case['said'] = 'a traceback'", "a traceback"),
    ],
)
def test_the_watcher_names_the_case_that_went_wrong_and_goes_on(fault, said):
    code = f"""
import json, os, sys, time
for i in range(int(sys.argv[1]), 5):
    case = dict(case=i, name="a file", kind="GGUF", end="begun", said="")
    print(json.dumps(case), flush=True)
    case["end"] = "ran"
    if i == 2:
        {fault}
    print(json.dumps(case), flush=True)
"""
    tally = mutate.watched(5, lambda first: [sys.executable, "-c", code, str(first)], hang=3)
    assert tally.wrong == [f"case 2, a file: {said}"] and tally.ran["GGUF"] == 4


def test_a_worker_that_never_starts_is_an_error():
    assert mutate.watched(5, lambda first: [sys.executable, "-c", "raise SystemExit(3)"]).wrong == [
        "case 0, the start: the process ended with 3"
    ]
