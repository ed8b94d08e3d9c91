"""The drift of caches: nothing without one, something with one; and the command that reports it."""

import json
import sys
from dataclasses import replace

import pytest

from polydec import load
from polydec.lab.bench.cache_drift import measure_cache_drift
from polydec.models.learned.kinds import joint

ASKED = "shuffle: 504132"


@pytest.mark.parametrize(
    "method, options, exact",
    [
        ("llada", {"block": 4}, True),
        ("llada", {"block": 4, "cache": 1}, False),
        ("llada", {"block": 4, "cache": 2}, False),
        ("freecache", {"block": 4, "threshold": 2}, False),
        ("dkv-cache", {"block": 0}, False),
    ],
)
def test_only_what_keeps_something_drifts(method, options, exact):
    lm = load("zoo:diffusion", dtype="float32")
    d = measure_cache_drift(lm, ASKED, method, options, sampling=lm.sampling_with(), max_tokens=14)
    assert d.rows >= d.passes > 1 and 0 <= d.moved <= 1 and d.nats <= d.most
    assert d.most < 1e-9 if exact else d.most > 1e-4


def test_a_method_that_reads_states_is_watched_too():
    """adjust asks a pass for states, of which it makes laws itself."""
    lm = load("zoo:diffusion", dtype="float32")
    lm = replace(lm, artefacts=joint.examples(lm.checkpoint.lm.vocab, 128, 4)[:1])
    d = measure_cache_drift(
        lm, ASKED, "adjust", {"count": 2}, sampling=lm.sampling_with(), max_tokens=14
    )
    assert d.rows >= d.passes > 1 and d.most < 1e-9 and d.stale is None


def test_the_command(capfd, monkeypatch, tmp_path):
    from polydec.cli.main import main as command

    (tmp_path / "prompts.txt").write_text(ASKED + "\n")

    def main(*args):
        monkeypatch.setattr(
            sys,
            "argv",
            [
                "polydec",
                "verify",
                "--model",
                "zoo:diffusion",
                "--max-tokens",
                "14",
                "--data",
                str(tmp_path / "prompts.txt"),
                "--method",
                "fast-dllm",
                *args,
            ],
        )
        with pytest.raises(SystemExit) as stop:
            command()
        return stop.value.code or 0

    assert main("--set", "cache=2", "--set", "block=4", "--set", "threshold=2", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["method"] == "fast-dllm" and said["prompts"][0]["nats"] > 0
    assert main() == 0 and "KL, nats" in capfd.readouterr().out
    assert (
        main("--set", "cache=3") == 2
        and "cache is 3: it must lie in 0 to 2" in capfd.readouterr().err
    )
