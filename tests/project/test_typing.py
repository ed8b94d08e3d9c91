"""What an editor says of programs that use Polydec: pyright on the documents' code and on a typo."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import guide
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
TYPO = """
import polydec

lm = polydec.load("zoo:tiny")
polydec.generate(lm, "Why?", max_tokens=3, method="plain")
polydec.generate(lm, "Why?", max_token=3)
polydec.generate(lm, "Why?", max_tokens="3")
polydec.Engine(lm).submit("Why?", temprature=3)
one: polydec.Completion = polydec.generate(lm, "Why?", temperature=0.5)
several: list[polydec.Completion] = polydec.generate(lm, ["Why?", "How?"], top_k=3)
"""


def errors(code: str, at: Path) -> list[str]:
    """The lines of a program that pyright finds wrong, as it says it."""
    at.write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(at)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return re.findall(r":(\d+):\d+ - error: (.*)", done.stdout)


@pytest.mark.slow
def test_keywords_of_a_request_are_known(tmp_path):
    pytest.importorskip("pyright")
    found = errors(TYPO, tmp_path / "typo.py")
    assert list(dict.fromkeys(line for line, _ in found)) == ["6", "7", "8"], found
    assert any('"int | None"' in said for line, said in found if line == "7")
    assert '"temprature"' in found[-1][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [f for f in guide.FILES if not f.startswith(("recipes", "steering"))]
)
def test_a_mechanism_as_the_documents_write_it_has_no_error(file, tmp_path):
    pytest.importorskip("pyright")
    assert not errors(guide.FILES[file], tmp_path / "page.py")


SAMPLED = """
from dataclasses import replace

import polydec

sampling = polydec.Sampling(temperature=0.5, bad_token_ids=[1, 2])
at: float = replace(sampling, top_k=3).temperature
polydec.Sampling(temprature=1)
polydec.Sampling(temperature="x")
"""


@pytest.mark.slow
def test_the_fields_of_sampling_are_known(tmp_path):
    pytest.importorskip("pyright")
    found = errors(SAMPLED, tmp_path / "sampled.py")
    assert [line for line, _ in found] == ["8", "9"], found
    assert '"temprature"' in found[0][1] and '"float"' in found[1][1]
