"""Prompts as they stand in files and on standard input: byte order marks, line ends of other systems, a line break alone."""

from __future__ import annotations

import gzip
import io
import json
import sys

import pytest

import polydec
from polydec.cli import generate, prompts
from polydec.models.formats import text_rows
from polydec.request import exemplars
from polydec.serve.batch import lines_of
from polydec.serve.quotas import ApiKey, read_keys

MARK = b"\xef\xbb\xbf"


class Piped:
    """Standard input with bytes behind it, as Python has it."""

    def __init__(self, content):
        self.buffer = io.BytesIO(content)

    def isatty(self):
        return False


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", MARK])
def test_a_mark_is_no_part_of_the_first_prompt(mark, end, tmp_path, monkeypatch):
    said = ["Tom", "has", "é"]
    text = end.join(said).encode()
    written = tmp_path / "prompts.txt"
    written.write_bytes(mark + text)
    assert [row.prompt for row in prompts.read_prompt_rows(written)] == said
    packed = tmp_path / "prompts.txt.gz"
    packed.write_bytes(gzip.compress(mark + text))
    assert [row.prompt for row in prompts.read_prompt_rows(packed)] == said
    objects = end.join(json.dumps({"prompt": x}) for x in said).encode()
    for name in ("p.jsonl", "p.txt"):
        (tmp_path / name).write_bytes(mark + objects)
        assert [row.prompt for row in prompts.read_prompt_rows(tmp_path / name)] == said
    assert [line for _, line in text_rows.read_text_lines(written)] == said
    assert [x["prompt"] for _, x in text_rows.read_json_lines(tmp_path / "p.jsonl")] == said
    assert len(lines_of(prompts.read_text(tmp_path / "p.jsonl"), "")) == 3
    assert generate.read_prompt_text(None, written) == end.join(said)
    monkeypatch.setattr(sys, "stdin", Piped(mark + text + end.encode()))
    assert generate.read_prompt_text("-", None) == end.join(said)
    monkeypatch.setattr(sys, "stdin", io.StringIO((mark + text).decode()))
    assert prompts.standard_input() == end.join(said)
    solved = tmp_path / "solved.jsonl"
    solved.write_bytes(mark + json.dumps({"question": "q", "answer": "a #### 4"}).encode())
    assert exemplars.read_exemplars(solved)[0].question == "q"
    keys = tmp_path / "keys"
    keys.write_bytes(mark + b"secret-key" + end.encode())
    assert read_keys(keys, None) == (ApiKey("secret-key"),)


@pytest.mark.parametrize("text", ["\n", "\r\n", " ", "\t", "\n\n", "\u00a0"])
def test_a_prompt_of_white_space_is_a_prompt(text, tmp_path, monkeypatch):
    lm = polydec.load("zoo:tiny", draft=None)
    for raw in (True, False):
        assert polydec.generate(lm, text, raw=raw, max_tokens=2).choices[0].token_ids
    assert lm.encode_prompt(text, raw=True) == lm.checkpoint.text.encode(text)
    written = tmp_path / "prompt"
    written.write_bytes(text.encode())
    assert generate.read_prompt_text(None, written) == text
    monkeypatch.setattr(sys, "stdin", Piped(text.encode()))
    assert generate.read_prompt_text(None, None) == ("\n" if text == "\n\n" else text)
    assert generate.read_prompt_text(text, None) == text


def test_nothing_at_all_is_still_refused():
    lm = polydec.load("zoo:tiny", draft=None)
    for prompt in ("", []):
        with pytest.raises(ValueError, match="prompt is empty"):
            polydec.generate(lm, prompt, max_tokens=2)
