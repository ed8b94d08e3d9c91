"""What is refused has a type of its own, so that a fault of the program is never taken for something that is not there."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import polydec
from polydec import FileError, MissingError, PolydecError, RequestError
from polydec.lab.testing.toy import toy_law
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.models.sessions import checkpoint

ROOT = Path(polydec.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py") if "testing" not in p.parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_sentence_is_raised_with_its_type(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            assert getattr(node.exc.func, "id", "") != "ValueError", f"line {node.lineno}"


DECIDES = ("methods", "request", "recipes", "steering", "families", "drafters", "targets", "trees")

HANDS_ON = {"async_engine.py"}
"""Files that decide nothing by an error: whoever awaits an answer is given it, whatever it is."""


@pytest.mark.parametrize("room", DECIDES)
def test_nothing_that_decides_catches_what_a_fault_raises_too(room):
    for path in (ROOT / room).rglob("*.py"):
        if path.name in HANDS_ON:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                caught = {getattr(n, "id", "") for n in ast.walk(node.type)}
                assert not caught & {"ValueError", "Exception"}, f"{path}: line {node.lineno}"


def test_the_kinds_are_told_apart(tmp_path):
    with pytest.raises(FileError):
        checkpoint.load_bundle(str(tmp_path / "nothing.gguf"))
    with pytest.raises(RequestError):
        registry.find_method("no such method at all")
    with pytest.raises(MissingError):
        _ = Kit(toy_law(1)).drafting
    for kind in (FileError, MissingError, RequestError):
        assert issubclass(kind, PolydecError) and issubclass(kind, ValueError)


class Faulty:
    """A part of a kit whose own code is wrong."""

    def check_fit(self, target, draft):
        int("a fault, not a refusal")


def test_a_fault_does_not_read_as_absent():
    kit = replace(Kit(toy_law(1)), artefacts=(Faulty(),))
    with pytest.raises(ValueError) as caught:
        kit.find_artefact(Faulty)
    assert not isinstance(caught.value, PolydecError)


FAULT = """
import sys
import polydec.cli.main as main
def broken(*args, **named): int("a fault")
main.app = broken
main.main()
"""


def test_the_command_says_that_it_is_a_fault_of_the_program():
    done = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "a fault of the program (ValueError" in done.stderr
