"""Ctrl-C and SIGTERM under a command: exit code 130, one sentence that says what is kept and how to go on; no row is lost."""

import json
import signal

import pytest

from polydec import api
from polydec.lab.bench import measure
from polydec.lab.commands import verify as verifying
from polydec.request import profile

STOPS = (signal.SIGINT, signal.SIGTERM)


def stopping(inner, at, number):
    """The same function; its call of this number (from 0) first gets the signal."""
    calls = []

    def outer(*given, **named):
        calls.append(1)
        if len(calls) == at + 1:
            signal.raise_signal(number)
        return inner(*given, **named)

    return outer


def stopped(done, *said):
    code, _, err = done
    last = err.rstrip("\n").split("\n")[-1]
    assert code == 130 and "Traceback" not in err, err
    assert last.startswith("polydec: stopped") and all(x in last for x in said), err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", STOPS)
def test_a_batch_loses_no_row(number, polydec_command, tmp_path, monkeypatch):
    given, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    given.write_text("".join(f"The {n} old rivers\n" for n in range(6)))
    words = ("batch", given, out, "--model", "zoo:tiny", "--max-tokens", "4", "--max-running", "1")
    with monkeypatch.context() as patch:
        patch.setattr(api.Engine, "step", stopping(api.Engine.step, 14, number))
        stopped(polydec_command(*words), "the same command goes on from here")
    rows = [json.loads(x) for x in out.read_text().splitlines()]
    assert 0 < len(rows) < 6
    code, _, err = polydec_command(*words)
    assert code == 0 and f"{len(rows)} were there" in err
    assert {json.loads(x)["line"] for x in out.read_text().splitlines()} == set(range(1, 7))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", STOPS)
def test_others_say_how_to_go_on(number, polydec_command, tmp_path, monkeypatch):
    tiny = ("--model", "zoo:tiny", "--max-tokens", "2")
    record = tmp_path / "runs.jsonl"
    bench = ("bench", *tiny, "--methods", "plain", "--limit", "1", "--repeat", "2")
    with monkeypatch.context() as patch:
        patch.setattr(measure, "measure_methods", stopping(measure.measure_methods, 0, number))
        stopped(polydec_command(*bench, "--record", record), str(record), "goes on from there")
        patch.setattr(measure, "measure_methods", stopping(measure.measure_methods, 0, number))
        stopped(polydec_command(*bench), "--record FILE")
    certificate = tmp_path / "c.json"
    verify = ("verify", *tiny, "--method", "prompt-lookup", "--limit", "1")
    with monkeypatch.context() as patch:
        patch.setattr(
            verifying, "verify_continuation", stopping(verifying.verify_continuation, 0, number)
        )
        stopped(
            polydec_command(*verify, "--certificate", certificate), "no certificate was written"
        )
    assert not certificate.exists()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        patch.setattr(
            profile, "measure_pass_profile", stopping(profile.measure_pass_profile, 0, number)
        )
        stopped(
            polydec_command("tune", "--model", "zoo:tiny", "--seconds", "1"),
            "nothing was measured anew",
        )
