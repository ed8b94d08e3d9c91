"""polydec serve --trace: what happens to requests, in a file that `polydec trace` reads; no request suffers from it."""

import json
import logging
import stat
import sys

import pytest

pytest.importorskip("fastapi")
from house import served

from polydec.cli.trace import read_choice_traces
from polydec.core.trace import FinishedEvent, OpenedEvent
from polydec.serve.steps import StepObserver
from polydec.serve.traced import ServerTrace


def body(prompt, **more):
    return {"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0, **more}


@pytest.fixture
def traced(lm, tmp_path):
    """A server, its client and the file of its trace."""
    at = tmp_path / "served.jsonl"
    with served({"tiny": lambda: lm}, trace=ServerTrace(at)) as house, house.client() as http:
        yield http, at


def test_requests_stand_in_one_trace_with_their_passes(traced):
    http, at = traced
    first = http.post("/v1/completions", json=body("Once upon", method="prompt-lookup"))
    second = http.post("/v1/completions", json=body(["one two", "three four"]))
    steps = http.post("/v1/completions", json=body("Once upon", polydec="steps"))
    assert (first.status_code, second.status_code, steps.status_code) == (200, 200, 200)
    stories = read_choice_traces(at)
    assert [request for request, _ in stories] == [0, 1, 2, 3]
    assert all(s.finish in ("length", "stop") and s.tokens for s in stories.values())
    assert stories[0, 0].method.startswith("prompt-lookup") and stories[0, 0].head["vocabulary"]
    assert all(s.passes and s.rounds for s in stories.values())
    starts = [s.passes[0].start for s in stories.values()]
    assert starts == sorted(starts) and starts[0] > 0
    assert stories[0, 0].written == stories[3, 0].written
    assert '"passes"' in steps.text, "who asks for steps gets them beside the trace"


def test_a_refused_request_leaves_no_line(traced):
    http, at = traced
    assert http.post("/v1/completions", json=body("x", method="no-such")).status_code == 400
    assert at.read_text() == ""
    assert stat.S_IMODE(at.stat().st_mode) == 0o600, "it holds what clients wrote"


def test_a_full_trace_ends_and_requests_go_on(lm, tmp_path, caplog):
    at, whole = tmp_path / "served.jsonl", tmp_path / "whole.jsonl"
    caplog.set_level(logging.ERROR, "polydec.serve")
    with served({"tiny": lambda: lm}, trace=ServerTrace(whole)) as house, house.client() as http:
        assert http.post("/v1/completions", json=body("Once upon")).status_code == 200
    most = whole.stat().st_size + 100  # how long it is depends on what was measured on this machine
    with (
        served({"tiny": lambda: lm}, trace=ServerTrace(at, most=most)) as house,
        house.client() as http,
    ):
        for _ in range(3):
            assert http.post("/v1/completions", json=body("Once upon")).status_code == 200
    assert at.stat().st_size < most and caplog.text.count("the trace ends here") == 1
    assert read_choice_traces(at)


def test_events_wait_for_the_ticket(lm, tmp_path):
    """The engine may begin before the planner has told what the request is."""
    import polydec

    trace, steps = ServerTrace(tmp_path / "t.jsonl"), StepObserver()
    watched = trace.watch_request(lm, steps)
    watched(OpenedEvent(0, (1, 2)))
    assert (tmp_path / "t.jsonl").read_text() == ""
    ticket = polydec.Engine(lm).submit(polydec.Ask("x", max_tokens=2))
    watched.note_begin(ticket)
    watched(FinishedEvent(0, "stop"))
    trace.close()
    watched(FinishedEvent(1, "stop"))
    lines = [json.loads(x) for x in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [x["event"] for x in lines] == ["Opened", "Finished"]
    assert lines[0]["method"] == ticket.method and lines[1]["request"] == 0


@pytest.mark.parametrize(
    "args, says",
    [
        (["--trace", "t.jsonl", "--replicas", "2"], "--trace with --replicas"),
        (["--trace", "no/such/t.jsonl", "--port", "0"], "cannot be written"),
    ],
)
def test_what_cannot_be_traced_is_refused(monkeypatch, capfd, tmp_path, args, says):
    from polydec.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["polydec", "serve", "--model", "zoo:tiny", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capfd.readouterr().err
    assert stop.value.code == 2 and says in said and said.count("\n") == 1
