"""The faults of step_mutants.py can still be put back, and each is seen by the test that it names."""

import shutil

import pytest
import step_mutants


@pytest.mark.parametrize("mutant", step_mutants.MUTANTS, ids=lambda m: m.name)
def test_a_fault_has_one_place(mutant):
    text = (step_mutants.ROOT / "src/polydec" / mutant.file).read_text()
    assert text.count(mutant.old) == 1 and mutant.old != mutant.new
    assert (
        mutant.test.partition("::")[2].partition("[")[0]
        in (step_mutants.ROOT / mutant.test.partition("::")[0]).read_text()
    )


@pytest.mark.slow
def test_every_fault_is_seen():
    if not shutil.which("g++"):
        pytest.skip("no compiler")
    assert [mutant.name for mutant, passed in step_mutants.missed() if passed] == []
