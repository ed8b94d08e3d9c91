"""What the package promises by name."""

import importlib
import re
import tomllib
from pathlib import Path

import polydec

ROOT = Path(polydec.__file__).parent
NAMES = {
    "AnyOf",
    "Ask",
    "AsyncEngine",
    "Choice",
    "Completion",
    "Draft",
    "Engine",
    "Exactness",
    "FileError",
    "Image",
    "JsonSchema",
    "LoadedModel",
    "LarkGrammar",
    "MissingError",
    "Piece",
    "PolydecError",
    "Regex",
    "Request",
    "RequestError",
    "Result",
    "Rng",
    "Sampling",
    "ShapedTarget",
    "Soft",
    "SpanOf",
    "SpeculativeDecoder",
    "Ticket",
    "agenerate",
    "astream",
    "build_shapers",
    "generate",
    "load",
    "registry",
    "replay",
    "stream",
}
"""What users may rely on: another name here is a promise more, one less breaks somebody's program (say so in CHANGELOG.md)."""


def test_public_names_are_exactly_these():
    assert set(polydec.__all__) == NAMES and len(polydec.__all__) == len(NAMES)
    assert set(dir(polydec)) >= NAMES


def test_every_name_is_there_and_says_what_it_is():
    for name in NAMES:
        thing = getattr(polydec, name)
        assert thing.__doc__, f"{name} has no docstring"


def test_names_that_documents_use_are_public():
    documents = [
        p.read_text("utf-8")
        for p in (ROOT.parents[1] / "README.md", *(ROOT.parents[1] / "docs").glob("*.md"))
        if p.exists()
    ]
    used = {
        name
        for text in documents
        for block in re.findall(r"```python[^\n]*\n(.*?)```", text, re.S)
        for name in re.findall(r"\bpolydec\.(\w+)", block)
    }
    modules = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or p.is_dir()}
    assert used - modules <= NAMES and used


def test_types_are_shipped():
    assert (ROOT / "py.typed").is_file()
    project = ROOT.parents[1] / "pyproject.toml"
    assert not project.exists() or "py.typed" in project.read_text("utf-8")


def test_the_version_is_one():
    project = ROOT.parents[1] / "pyproject.toml"
    if project.exists():
        about = tomllib.loads(project.read_text("utf-8"))
        assert "version" not in about["project"] and about["project"]["dynamic"] == ["version"]
        assert about["tool"]["setuptools"]["dynamic"]["version"] == {
            "attr": "polydec.base.version.PACKAGE_VERSION"
        }
        changes = (project.parent / "CHANGELOG.md").read_text("utf-8")
        dated = re.search(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", changes, re.MULTILINE)
        assert dated is not None and dated[1] == polydec.__version__
    assert importlib.import_module("polydec").__version__ == polydec.__version__
