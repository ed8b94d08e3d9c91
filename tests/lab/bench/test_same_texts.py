"""benchmarks/same_texts.py writes what requests came to, and names those that come to something else."""

import json

import pytest
import same_texts


def test_a_toy_has_a_line_for_every_law_alone_and_together(monkeypatch):
    monkeypatch.setattr(same_texts, "METHODS", ("plain", "prompt-lookup"))
    monkeypatch.setattr(same_texts, "TOYS", slice(2, 3))
    lines = list(same_texts.toy_lines())
    assert len(lines) == 3 * 2 * 2, "three laws, two methods, alone and together"
    assert lines == list(same_texts.toy_lines())


@pytest.mark.slow
def test_a_record_has_a_line_for_every_request_and_is_the_same_again(monkeypatch, tmp_path):
    monkeypatch.setattr(same_texts, "METHODS", ("plain", "prompt-lookup"))
    monkeypatch.setattr(same_texts, "STEERINGS", ())
    monkeypatch.setattr(same_texts, "CONSTRAINTS", ())
    monkeypatch.setattr(same_texts, "TOYS", slice(2, 3))
    monkeypatch.setattr(same_texts, "CANVASES", ("mdlm",))
    for name in ("before", "after"):
        same_texts.write(tmp_path / name)
    lines = [json.loads(x) for x in (tmp_path / "before").read_text().splitlines()]
    toys = [asked for asked, _ in lines if asked[0] == "toy"]
    assert len(toys) == 3 * 2 * 2, "three laws, two methods, alone and together"
    assert sum(asked[0] == "tiny" for asked, _ in lines) == 4 * (2 + 2 + 1)
    assert sum(asked[0] == "diffusion" for asked, _ in lines) == 1
    assert same_texts.compare(tmp_path / "before", tmp_path / "after") == 0


def test_what_differs_is_named(tmp_path, capsys):
    for name, text in (("before", "a"), ("after", "b")):
        lines = [json.dumps([["tiny", "plain"], [text]]), json.dumps([["tiny", "beam"], ["c"]])]
        (tmp_path / name).write_text("\n".join(lines))
    assert same_texts.compare(tmp_path / "before", tmp_path / "after") == 1
    assert "differs: ['tiny', 'plain']\n2 lines compared, 1 different" in capsys.readouterr().out
