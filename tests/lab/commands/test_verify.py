"""polydec verify: what each promise is held to, the certificate, and its repetition."""

import json
import re

import pytest


@pytest.fixture
def verify(polydec_command, tmp_path):
    data = tmp_path / "p.txt"
    data.write_text("Once upon a time\nThe old man went\n")

    def call(*args, data=data):
        more = () if data is None else ("--model", "zoo:tiny", "--raw", "--data", str(data))
        return polydec_command("verify", *more, *args)

    return call


def test_a_sampled_certificate_and_its_repetition(verify, tmp_path):
    at = tmp_path / "certificate.json"
    drawn = ("--temperature", "0.9", "--samples", "6", "--max-tokens", "6")
    code, out, _ = verify("--method", "draft-model", *drawn, "--certificate", str(at))
    assert code == 0 and "verdict: keeps it" in out and "would have caught" in out
    assert "random toy laws" in out and re.search(
        r"\d+ laws enumerated, \d+ tokens drafted, \d+ accepted, \d+ rejected", out
    )
    said = json.loads(at.read_text())
    assert said["certificate"] == 1 and said["promise"] == "law" and said["seeds"] == [0, 1, 2, 3]
    assert {t["name"] for t in said["law"]["tests"]} >= {
        "surprise",
        "cells",
        "pairs",
        "twins",
        "seeds",
    }
    assert (
        0 < said["law"]["power"]["temperature"] <= 1 and said["law"]["cost"]["plain"]["passes"] > 0
    )
    exact = said["enumeration"]
    assert exact["laws"] >= 8 and exact["apart"] < 1e-9 and exact["ways"] > 100
    assert exact["exercised"]["accepted"] > 0 and exact["exercised"]["rejected"] > 0
    assert said["versions"]["torch"] and [r["prompt"] for r in said["asked"]] == [
        "Once upon a time",
        "The old man went",
    ]
    code, out, _ = verify("--repeat", str(at), "--json", data=None)
    again = json.loads(out)
    assert code == 0 and again["repeats"]["same_verdict"] and again["repeats"]["same_texts"]
    assert again["law"]["digest"] == said["law"]["digest"]


def test_a_promise_is_not_called_kept_where_nothing_was_drafted(verify):
    silent = ("--method", "draft-model", "--set", "depth=0", "--max-tokens", "4", "--limit", "1")
    code, out, _ = verify(*silent)
    assert code == 0 and "verdict: not shown (nothing was drafted in these texts)" in out
    assert "tokens: 0 drafted, 0 accepted, 0 rejected" in out and "keeps it" not in out
    code, out, _ = verify(*silent, "--temperature", "0.9", "--samples", "4", "--json")
    said = json.loads(out)
    assert code == 0 and said["verdict"] == "not shown"
    assert "nothing was drafted" in said["place"]
    assert said["enumeration"]["verdict"] == "not shown" and said["enumeration"]["missing"]
    code, out, _ = verify("--method", "plain", "--max-tokens", "4", "--limit", "1")
    assert code == 0 and "verdict: keeps it" in out
    code, out, _ = verify("--method", "draft-model", "--max-tokens", "8", "--json")
    counts = json.loads(out)["exercised"]
    assert code == 0 and counts["drafted"] >= counts["accepted"] + counts["rejected"] > 0


@pytest.mark.parametrize(
    "change, said",
    [
        ({"certificate": 2}, "certificate of version 2"),
        ({"certificate": None}, "is no certificate"),
        ({"flags": {"serve": "x"}}, "'serve', which verify does not take"),
        ({"flags": {"method": {"a": 1}}}, "method is a dict"),
        ({"asked": []}, "asked is empty"),
        ({"asked": [{"prompt": 3}]}, "prompt"),
        ({"samples": 1}, "samples is 1"),
    ],
)
def test_a_certificate_that_asks_for_something_else_is_refused(verify, tmp_path, change, said):
    at = tmp_path / "c.json"
    good = {
        "certificate": 1,
        "machine": "m",
        "verdict": "keeps it",
        "flags": {},
        "asked": [{"prompt": "a"}],
    }
    at.write_text(json.dumps(good | change))
    code, _, err = verify("--repeat", str(at), data=None)
    assert code == 2 and said in err and err.count("\n") == 1


def test_what_repeat_and_samples_go_with(verify, tmp_path):
    code, _, err = verify("--samples", "8")
    assert code == 2 and "at temperature 0 there is one text" in err
    code, _, err = verify("--samples", "2", "--temperature", "1")
    assert code == 2 and "samples is 2" in err
    at = tmp_path / "c.json"
    code, _, err = verify("--repeat", str(at), "--limit", "1", data=None)
    assert code == 2 and "the certificate has them" in err


def test_a_constraint_comes_back_from_its_certificate(verify, tmp_path):
    at, grammar = tmp_path / "c.json", tmp_path / "g.lark"
    grammar.write_text('start: ("the" | "fox" | " ")~12\n')
    code, out, _ = verify(
        "--method",
        "prompt-lookup",
        "--grammar",
        str(grammar),
        "--limit",
        "1",
        "--certificate",
        str(at),
    )
    assert code == 0 and "verdict: keeps it" in out and "can judge" in out
    grammar.unlink()
    code, out, _ = verify("--repeat", str(at), data=None)
    assert code == 0 and "the same texts here" in out


def test_a_constraint_is_judged_and_its_law_computed_again(verify):
    code, out, _ = verify("--method", "prompt-lookup", "--regex", "(the|fox| ){12}", "--json")
    said = json.loads(out)
    assert code == 0 and said["verdict"] == "keeps it" and said["counts"]["equal"] == 2
    held = said["constraint"]
    assert held["finished"] == held["valid"] == 2 and held["rows"] > 0 and held["apart"] < 1e-4


def test_an_approximate_method_is_measured(verify):
    code, out, _ = verify("--method", "unified-layer-skipping", "--max-tokens", "8", "--json")
    said = json.loads(out)["distance"]
    assert (
        code == 0 and said["by"] == "laws" and said["all"]["kl"] > 0.01 and said["all"]["tv"] > 0.01
    )
    low, high = said["all"]["kl_interval"]
    assert low <= said["all"]["kl"] <= high and [p["first"] for p in said["positions"]] == [
        0,
        1,
        2,
        4,
    ]
    code, out, _ = verify("--method", "unified-layer-skipping", "--max-tokens", "4", "--limit", "1")
    assert code == 0 and "verdict: measured" in out and "KL, nats a token" in out


@pytest.mark.parametrize("method", ["beam", "exact-extract", "contrastive-search", "best-of-n"])
def test_a_search_is_audited(verify, method):
    code, out, _ = verify("--method", method, "--max-tokens", "8", "--limit", "1", "--json")
    said = json.loads(out)
    assert code == 0 and said["verdict"] == "keeps it" and said["search"]["apart"] < 1e-3
    assert said["search"]["scored"] == (method in ("beam", "exact-extract"))


def test_steering_is_kept_to(verify):
    code, out, _ = verify(
        "--method",
        "prompt-lookup",
        "--steer",
        "cfg",
        "--negative-prompt",
        "The",
        "--max-tokens",
        "8",
    )
    assert code == 0 and "2 equal" in out


@pytest.mark.parametrize("method", ["mdlm", "left-to-right"])
def test_the_drawn_law_of_a_schedule(verify, tmp_path, method):
    data = tmp_path / "canvases.txt"
    data.write_text("copy: 1234\n")
    drawn = ("--temperature", "0.9", "--samples", "8", "--max-tokens", "6", "--json")
    asked = ("--model", "zoo:diffusion", "--data", str(data))
    code, out, _ = verify(*asked, "--method", method, *drawn, data=None)
    said = json.loads(out)
    assert code == 0 and said["verdict"] == "keeps it" and said["promise"] == "law"
    assert {t["name"] for t in said["law"]["tests"]} >= {"surprise", "cache", "order"}
    assert said["enumeration"]["laws"] == 8 and said["enumeration"]["apart"] < 1e-9
    code, out, _ = verify(*asked, "--method", method, "--set", "steps=2", *drawn, data=None)
    said = json.loads(out)  # more gaps a pass than one: nothing is promised
    assert code == 0 and said["promise"] == "approximate" and "law" not in said
