"""Embedded models: names, places, and how to get what is missing."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from polydec.models.formats import zoo
from polydec.models.sessions import checkpoint


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that brings a model, in a place of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = zoo.ZooEntry(
        "thing", "a thing", "nowhere", "none", "1 MB", ("polydec-thing==1", "polydec_thing_weights")
    )
    monkeypatch.setattr(zoo, "_ENTRIES", (*zoo._ENTRIES, entry))

    def put():
        (tmp_path / "polydec_thing_weights").mkdir()
        (tmp_path / "polydec_thing_weights" / "__init__.py").write_text(
            "raise RuntimeError('this must not run')"
        )
        (tmp_path / "polydec_thing_weights" / "a.gguf").write_bytes(b"GGUF")

    return put


def test_every_name_is_told_apart():
    names = [e.name for e in zoo.zoo_entries()]
    assert len(set(names)) == len(names) and {
        "smollm2",
        "smollm2-draft",
        "smollm2-ngrams",
        "tiny",
        "tiny-draft",
    } <= set(names)
    for entry in zoo.zoo_entries():
        assert entry.what and entry.source and entry.licence and entry.size
        assert zoo.find_zoo_entry(entry.name) is zoo.find_zoo_entry(f"zoo:{entry.name}") is entry
        assert entry.here == (entry.path is not None)
        if entry.here:
            assert (
                zoo.zoo_model_path(entry.name) == entry.path
                and float(entry.size.removesuffix(" MB")) > 0
            )


def test_unknown_names_offer_the_nearest():
    with pytest.raises(ValueError, match=r"'zoo:smolm2': .*zoo:smollm2"):
        zoo.zoo_model_path("zoo:smolm2")
    with pytest.raises(
        ValueError, match=r"zoo:smollm2-draft, .*zoo:smollm2-states, zoo:diffusion, "
    ):
        zoo.find_zoo_entry("zzz")
    with pytest.raises(ValueError, match=r"(nearest is|nearest are) zoo:tiny"):
        zoo.find_zoo_entry("TINY1")


def test_what_is_missing_says_how_to_get_it(package):
    with pytest.raises(ValueError, match="run: polydec zoo install thing"):
        checkpoint.load_bundle("zoo:thing")


def test_a_package_is_found_and_never_run(package):
    package()
    assert (
        zoo.zoo_model_path("zoo:thing").name == "a.gguf"
        and "polydec_thing_weights" not in sys.modules
    )
    assert zoo.install_zoo_model("thing").name == "a.gguf"  # it is here: nothing is run


def test_install_runs_pip_without_dependencies(package, monkeypatch):
    ran = []

    def pip(command, **options):
        ran.append(command)
        package()
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", pip)
    assert zoo.install_zoo_model("zoo:thing").name == "a.gguf"
    assert (
        ran[0][:3] == [sys.executable, "-m", "pip"]
        and "--no-deps" in ran[0]
        and ran[0][-1] == "polydec-thing==1"
    )


def test_a_failed_install_is_one_sentence(package, monkeypatch):
    failed = SimpleNamespace(returncode=1, stdout="", stderr="much\nERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **o: failed)
    with pytest.raises(ValueError, match="zoo:thing could not be installed: ERROR: no network"):
        zoo.install_zoo_model("thing")


def test_embedded_models_that_travel_with_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "_HERE", tmp_path)
    assert (
        zoo.default_draft("zoo:smollm2") is None and zoo.find_zoo_entry("tiny").size == "about 6 MB"
    )
    with pytest.raises(ValueError, match="zoo:tiny is not here: this installation"):
        zoo.install_zoo_model("tiny")
    for name in ("tiny", "smollm2-draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}" + " " * 99_998)
    assert (
        zoo.zoo_model_path("zoo:tiny") == tmp_path / "tiny"
        and zoo.find_zoo_entry("tiny").size == "0.1 MB"
    )
    assert zoo.default_draft("zoo:smollm2") == "zoo:smollm2-draft"
    assert zoo.default_draft("zoo:tiny") is None  # its draft is not here
    assert zoo.default_draft("zoo:tiny-draft") is None and zoo.default_draft("some/model") is None
