"""One command prints what each contract exercised."""

from pathlib import Path

import pytest

import contract_counts

pytest_plugins = ["pytester"]

TESTS = """
    from types import SimpleNamespace

    import pytest

    @pytest.mark.parametrize("drafted", [7, 8])
    def test_a_contract(drafted, record_counts):
        record_counts(SimpleNamespace(sentence=f"{drafted} tokens drafted"))

    def test_two_in_one(record_counts):
        for rejected in (1, 2):
            record_counts(SimpleNamespace(sentence=f"{rejected} rejected"))

    def test_a_contract_that_counted_nothing(record_counts):
        pass

    def test_something_else():
        raise AssertionError("it is no contract")
"""
LINES = [
    "test_all.py::test_a_contract[[]7[]]  7 tokens drafted",
    "test_all.py::test_a_contract[[]8[]]  8 tokens drafted",
    "test_all.py::test_two_in_one*1 rejected",
    "test_all.py::test_two_in_one*2 rejected",
    "4 counts",
]


@pytest.fixture
def run_contracts(pytester):
    """Runs the contracts among TESTS."""
    folder = str(Path(contract_counts.__file__).parent)  # another process does not know it
    pytester.makeconftest(
        f"import sys; sys.path.append({folder!r}); pytest_plugins = ['contract_counts']"
    )
    pytester.makepyfile(test_all=TESTS)
    return lambda *options: pytester.runpytest("-m", "contract", "--exitfirst", *options)


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["one process", "another process"])
def test_a_line_for_each_count(run_contracts, processes):
    done = run_contracts("--exercised", *processes)
    done.assert_outcomes(passed=4, deselected=0 if processes else 1)
    done.stdout.fnmatch_lines(["*what each contract exercised*", *LINES])
    done.stdout.no_fnmatch_line("*counted_nothing*")


def test_no_table_unless_it_is_asked_for(run_contracts):
    done = run_contracts()
    done.assert_outcomes(passed=4, deselected=1)
    done.stdout.no_fnmatch_line("*tokens drafted*")
