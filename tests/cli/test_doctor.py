"""polydec doctor and polydec tune."""
import json
import sys
import warnings

import pytest

from polydec import api
from polydec.bench import profile
from polydec.bench.passes import Passes, table
from polydec.cli.main import main
from polydec.testing.toy import toy


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*args, code=0):
        monkeypatch.setattr(sys, "argv", ["polydec", *args])
        with pytest.raises(SystemExit) as stop:
            main()
        assert int(stop.value.code or 0) == code
        return capsys.readouterr()
    return call


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_doctor(command):
    report = json.loads(command("doctor", "--model", "zoo:tiny", "--json").out)
    assert report["model"]["ngrams"] is None
    assert report["model"]["name"] == "zoo:tiny" and report["model"]["draft"]["name"] == "zoo:tiny-draft"
    assert report["model"]["kernel"].startswith("native") or report["model"]["why_not_native"]
    assert {e["name"] for e in report["zoo"]} >= {"zoo:tiny", "zoo:smollm2"}
    assert "asked       zoo:tiny" in command("doctor", "--model", "zoo:tiny").out


def test_doctor_says_what_is_wrong_with_a_model(command):
    report = json.loads(command("doctor", "--model", "zoo:tinny", "--json").out)
    assert "zoo:tiny" in report["model"]["error"]


def test_tune_is_what_auto_reads(command):
    said = json.loads(command("tune", "--model", "zoo:tiny", "--seconds", "1", "--json").out)
    lm = api.load("zoo:tiny")
    kept = profile.read(lm)
    assert kept is not None and kept.rows == {int(k): v for k, v in said["rows"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs = lm.costs
    assert list(costs.rows_ms) == sorted(costs.rows_ms) and len(costs.rows_ms) == max(profile.ROWS)
    assert costs.draft_ms > 0


def test_without_a_profile_it_is_measured_and_said(monkeypatch):
    monkeypatch.setattr(profile, "QUICK", 0.2)
    lm = api.load("zoo:tiny", draft=None)
    with pytest.warns(UserWarning, match="no profile of zoo:tiny"):
        costs = lm.costs
    assert profile.read(lm).costs == costs and costs.draft_ms == 0


def test_wrong_options_are_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(profile, "measure", None)
    engine = api.Engine(api.load("zoo:tiny"))
    for method, options in (("auto", {"depth": 99}), ("prompt-lookup", {"dept": 3}), ("merged-drafts", {"trust": 0.0})):
        with pytest.raises(ValueError, match=r"dept|trust"):
            engine.submit("The old river", method=method, options=options)


def test_a_profile_that_cannot_be_kept_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(profile, "QUICK", 0.2)
    lm = api.load("zoo:tiny", draft=None)
    with pytest.warns(UserWarning, match="could not be kept"):
        assert lm.costs.rows_ms


def test_damaged_profiles_count_as_none(tmp_path):
    lm = api.load("zoo:tiny", draft=None)
    profile.path().parent.mkdir(parents=True)
    for text in ("", "[]", "{", json.dumps({profile.key(lm): {"rows": 3}})):
        profile.path().write_text(text)
        assert profile.read(lm) is None


@pytest.mark.parametrize("seconds", ["0", "101", "nan"])
def test_tune_refuses(command, seconds):
    assert "seconds" in command("tune", "--seconds", seconds, code=2).err


def test_tune_says_first_where_nothing_can_be_kept(command, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(profile, "measure", None)             # not a pass is made
    err = command("tune", "--model", "zoo:tiny", code=2).err
    assert str(tmp_path / "file") in err and "XDG_CACHE_HOME" in err and err.count("\n") == 1


def test_passes_feed_what_they_say():
    network = toy(0).network
    fed = []
    class Watched:
        size = network.size
        new_cache = network.new_cache
        def forward(self, queries):
            fed.append([len(q) for q in queries])
            return network.forward(queries)
    call = Passes(Watched(), 5, batch=2)
    assert call(3) > 0 and fed[-1] == [3, 3]
    assert set(table(call, (1, 2), 0.0)) == {1, 2}
