"""Faults that earlier tests let pass: each one, put into a copy of the package, fails the test that is named for it."""

import os
import shutil
import subprocess
import sys
from importlib import import_module

import pytest

from mutants import MUTANTS
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
PACKAGE = ROOT / "src" / "polydec"
MORE = (
    *("mutants_more", "mutants_reuse", "mutants_context", "mutants_systems", "mutants_served"),
    "mutants_patches",
    "mutants_pictures",
    "mutants_readers",
    "mutants_published",
    "mutants_vision",
    "mutants_image_presses",
    "mutants_masks",
    "mutants_embeddings",
    "mutants_queries",
    "mutants_triplets",
)
"""Tables beside the first one."""


def tables():
    """Every mutant of every table that is there."""
    out = list(MUTANTS)
    for name in MORE:
        if (ROOT / "tests" / f"{name}.py").exists():
            out += import_module(name).MUTANTS
    return out


ALL = tables()


def copied(place):
    """The package at another place, its files links to ours."""
    shutil.copytree(
        PACKAGE,
        place / "polydec",
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return place / "polydec"


def outcome(place, nodes):
    """How a run of these tests over the package at `place` ended: 0 well, 1 a test failed; and what it wrote."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *nodes],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("mutant", ALL, ids=lambda m: m.name)
def test_the_tables_fit_the_code(mutant):
    """Whoever changes such a line changes its mutant as well."""
    found = (PACKAGE / mutant.file).read_text().count(mutant.old)
    assert found == 1, f"{mutant.file} has the old text {found} times"
    assert mutant.old != mutant.new
    file, _, test = mutant.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), (
        f"{mutant.test}: no such test"
    )


def test_each_mutant_has_a_name_of_its_own():
    assert len({m.name for m in ALL}) == len(ALL)


@pytest.mark.slow
def test_without_a_mutant_all_of_them_pass(tmp_path):
    copied(tmp_path)
    code, said = outcome(tmp_path, sorted({m.test for m in ALL}))
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ALL, ids=lambda m: m.name)
def test_a_mutant_is_caught(mutant, tmp_path):
    file = copied(tmp_path) / mutant.file
    text = file.read_text()
    file.unlink()  # a link to ours
    file.write_text(text.replace(mutant.old, mutant.new))
    code, said = outcome(tmp_path, [mutant.test])
    assert code == 1, f"{mutant.test} does not notice: {mutant.name}\n{said}"
