"""polydec tune --on: what is predicted, measured and advised for prompts of one's own."""

import json

import pytest
import torch

import micro
from polydec.lab.bench import measure
from polydec.lab.commands import tune_on
from polydec.request import profile


@pytest.fixture
def tuned(monkeypatch, polydec_command, tmp_path, measured_costs):
    torch.set_num_threads(1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tune_on, "SECOND", 0.01)
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
    assert told["choose"] and any("draft model" in said for said in told["buy"])
    assert any("threads" in said for said in told["buy"])
    assert any(said.startswith("int8") for said in told["buy"])


def test_the_table_ends_with_what_to_choose_and_to_buy(tuned):
    code, out, err = tuned("--best", 1)
    assert code == 0, err
    assert "on 1 prompts, 6 tokens" in out and "error" in out
    assert "\nchoose: " in out and "\nbuy: " in out


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
