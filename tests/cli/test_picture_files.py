"""polydec generate --out: pictures in files."""

import json
import sys

import pytest

from picture_models import SIDE, trained_model
from polydec.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(trained_model(tmp_path_factory.mktemp("pictures"))[0])


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command: (status, standard output, standard error)."""

    def ended(*args):
        monkeypatch.setattr(sys, "argv", ["polydec", *args])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        return stop.value.code or 0, said.out, said.err

    return ended


def asked(folder, *args):
    return ("generate", "block", "--model", folder, "--method", "plain", *args)


def test_a_picture_is_written_to_its_file(folder, tmp_path, run):
    out = tmp_path / "new" / "block.png"
    status, said, _ = run(*asked(folder, "--out", str(out)))
    assert status == 0 and said == f"{out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_several_pictures_are_numbered(folder, tmp_path, run):
    out = tmp_path / "block.png"
    status, said, _ = run(*asked(folder, "--out", str(out), "--n", "3"))
    files = [tmp_path / f"block-{at}.png" for at in (1, 2, 3)]
    assert status == 0 and said.split() == list(map(str, files))
    assert all(file.is_file() for file in files) and not out.exists()


def test_without_a_file_it_is_shown_in_characters(folder, run):
    status, said, _ = run(*asked(folder))
    assert status == 0
    assert [len(line) for line in said.split("\n")[:SIDE]] == [2 * SIDE] * SIDE


def test_json_has_the_picture_alone_on_standard_output(folder, tmp_path, run):
    out = tmp_path / "block.png"
    status, said, _ = run(*asked(folder, "--json", "--out", str(out)))
    assert status == 0 and json.loads(said)["b64_json"] and out.is_file()


def test_a_model_of_texts_draws_nothing(tmp_path, run):
    out = tmp_path / "a.png"
    status, _, said = run(
        "generate", "a", "--model", "zoo:tiny", "--out", str(out), "--max-tokens", "1"
    )
    assert status != 0 and not out.exists()
    assert (
        "zoo:tiny writes text, and only a model of pictures or a method of masks (stamp, x-decoder) has something to draw"
        in said
    )


@pytest.mark.parametrize(
    ("name", "says"), [("a.jpg", "pictures are written as PNG"), (".png", "let it end in .png")]
)
def test_another_kind_of_file_is_refused_before_anything_runs(name, says, tmp_path, run):
    status, _, said = run(
        "generate", "a", "--model", "no such model", "--out", str(tmp_path / name)
    )
    assert status != 0 and says in said
