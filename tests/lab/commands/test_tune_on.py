"""polydec tune --on: what is predicted, measured and advised for prompts of one's own."""

import json
from types import SimpleNamespace

import pytest
import torch

import micro
from polydec.lab.bench import measure
from polydec.lab.commands import tune_on
from polydec.request import machine, profile


@pytest.fixture
def tuned(monkeypatch, polydec_command, tmp_path, measured_costs):
    torch.set_num_threads(1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tune_on, "SECOND", 0.01)
    monkeypatch.setattr(machine, "relative_cpu_load", lambda: 0.0)
    model = micro.write(tmp_path / "micro")
    (tmp_path / "mine.jsonl").write_text('{"prompt": "the fox the fox the fox"}\n')
    usual = ("--model", model, "--on", tmp_path / "mine.jsonl", "--max-tokens", 6, "--raw")

    def call(*args):
        return polydec_command("tune", *usual, *args)

    return call


def test_what_is_predicted_is_measured_and_advised(tuned):
    code, out, err = tuned("--threads", 1, "--best", 2, "--json")
    assert code == 0, err
    told = json.loads(out)["on"]
    first, *others = told["settings"]
    assert first["method"] == "plain" and first["measured_tokens_per_second"] > 0
    assert first["error"] == pytest.approx(
        first["predicted_tokens_per_second"] / first["measured_tokens_per_second"] - 1
    )
    speeds = [s["predicted_tokens_per_second"] for s in others]
    assert speeds == sorted(speeds, reverse=True) and len(others) >= 5
    assert [s["measured_tokens_per_second"] is not None for s in others[:3]] == [True, True, False]
    assert all(s["identical"] for s in others[:2])
    said = [*told["buy"], *told["leave"]]
    assert told["choose"] and any("draft model" in x for x in said)
    assert any("threads" in x for x in said) and any(x.startswith("int8") for x in said)


def test_the_table_ends_with_what_to_choose_and_to_buy(tuned):
    code, out, err = tuned("--best", 1)
    assert code == 0, err
    assert "on 1 prompts, 6 tokens" in out and "error" in out
    assert "\nchoose: " in out and ("\nbuy: " in out or "\nleave: " in out)


@pytest.mark.parametrize("other, advised", [(0.5, True), (0.97, False), (1.3, False)])
def test_what_is_slower_here_is_not_advised(tuned, monkeypatch, other, advised):
    """other: what a pass in int8 takes, in passes of now."""
    times = []

    def timed(timer, rows, seconds):
        # In each pair the other setting is timed first.
        times.append(1)
        return {1: 1.0 if len(times) % 2 == 0 else other}

    clock = SimpleNamespace(PassTimer=tune_on.passes.PassTimer, measure_pass_times=timed)
    monkeypatch.setattr(tune_on, "passes", clock)
    load = tune_on.api.load
    # The micro model has no integers to multiply: it stands for one that has.
    monkeypatch.setattr(tune_on.api, "load", lambda name, compute=None, **how: load(name, **how))
    code, out, err = tuned("--best", 1, "--json")
    assert code == 0, err
    told = json.loads(out)["on"]
    for name, there in (("buy", advised), ("leave", not advised)):
        assert any(x.startswith("int8 (--compute int8)") for x in told[name]) == there, told


@pytest.mark.parametrize(
    "args, says",
    [
        (("--best", 9), "best is 9"),
        (("--limit", 0), "limit is 0"),
        (("--max-tokens", 1), "max_tokens is 1"),
        (("--max-tokens", 100_000), "max_tokens is 100000"),
        (("--on", "no such file"), "no such file"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(tuned, monkeypatch, args, says):
    monkeypatch.setattr(profile, "measure_pass_profile", None)
    monkeypatch.setattr(measure, "run_task", None)
    code, out, err = tuned(*args)
    assert code == 2 and says in err and not out, err


def test_a_model_that_fills_canvases_is_sent_to_bench(tuned, monkeypatch):
    monkeypatch.setattr(profile, "measure_pass_profile", None)
    code, _, err = tuned("--model", "zoo:diffusion")
    assert code == 2 and "`polydec bench` compares methods for it" in err
