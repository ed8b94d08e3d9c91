"""What a model thinks stands on standard error, its answer on standard output."""

import json
import sys

import pytest

import micro
from polydec.cli.main import main

OPENED = micro.TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinks")
    return str(micro.write(folder, more=("<think>", "</think>"), template=OPENED))


@pytest.fixture
def generate(monkeypatch, capsys):
    def run(path, *args):
        fixed = ("--max-tokens", "16", "--ignore-eos", "--method", "plain")
        argv = ["polydec", "generate", "Look.", "--model", path, *fixed, *args]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as stop:
            main()
        told = capsys.readouterr()
        assert stop.value.code == 0, told.err
        return told

    return run


APART = ("--reasoning-format", "auto", "--reasoning-budget", "4")


def test_thinking_is_written_aside(path, generate):
    known = json.loads(generate(path, *APART, "--json").out)
    assert known["reasoning"] and known["text"] and known["usage"]["reasoning_tokens"] == 4
    told = generate(path, *APART)
    assert told.out == known["text"] + "\n"
    assert told.err.startswith(known["reasoning"].rstrip())
    several = generate(path, *APART, "--n", "2")
    assert several.out.count(known["text"]) == 2 and known["reasoning"] not in several.out
    assert generate(path).out.startswith(known["reasoning"])  # as it stands, where nobody asks


def test_a_model_that_does_not_think_is_told_of(tmp_path, generate):
    plain = str(micro.write(tmp_path))
    assert "reasoning_format is auto and does nothing here" in generate(plain, *APART[:2]).err
