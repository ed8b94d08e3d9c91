"""Every script of examples/ and every notebook of notebooks/ runs on what travels in the package, at a small size."""

import ast
import asyncio
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import forked
import polydec
from polydec.core.trace import TraceEvent
from polydec.methods.diffusion.loop import events as _canvas_events  # noqa: F401
from polydec.methods.speculative.loop import events as _draft_events  # noqa: F401
from polydec.request.async_engine import async_engine_of
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TINY = ("--model", "zoo:tiny", "--max-tokens", "12")

ARGUMENTS = {
    "stream": ("Once upon a time", *TINY),
    "batch": TINY,
    "json_answer": (*TINY[:2], "--max-tokens", "40"),
    "search": ("A > B, B > C", "--tries", "3", "--max-tokens", "24"),
    "train_a_drafter": (*TINY, "--each", "2", "--out", "made"),
    "diffusion": ("--max-tokens", "12"),
    "own_method": (),
}
"""What each script is given here; server_client and fastapi_app have tests of their own."""

SAYS = {
    "stream": "tokens, of which",
    "batch": "of 4 requests",
    "json_answer": '"has_a_harbour":',
    "search": "a-star-decoding",
    "train_a_drafter": "passes by plain decoding",
    "diffusion": "filled   ",
    "own_method": "passes by plain decoding",
}
"""What each prints at its end, among other things."""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A fresh clone: no data beside it, no profiles, an empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLYDEC_DATA", raising=False)
    monkeypatch.delenv("POLYDEC_API_KEY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def play(name, *arguments):
    """Run a script in this process, as `python examples/NAME.py ARGUMENTS` does."""
    path = ROOT / "examples" / f"{name}.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")


def test_all_scripts_are_short_and_say_how_they_are_run():
    assert {p.stem for p in EXAMPLES} == {*ARGUMENTS, "server_client", "fastapi_app"}
    assert len(EXAMPLES) == 9
    for path in EXAMPLES:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) <= 60, path.name
        assert f"    python examples/{path.name}" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_runs(name, capsys):
    if name == "json_answer":
        pytest.importorskip("llguidance", reason="polydec[grammar] is not installed")
    play(name, *ARGUMENTS[name])
    assert SAYS[name] in capsys.readouterr().out


def until_ready(url):
    """Wait for the server's model, a minute at most."""
    for _ in range(240):
        try:
            with urllib.request.urlopen(f"{url}/health"):
                return
        except urllib.error.HTTPError as error:
            assert error.code == 503
            time.sleep(0.25)
    raise TimeoutError("the server's model was not loaded within a minute")


def test_the_client_of_a_server_runs(capsys):
    pytest.importorskip("openai", reason="openai is not installed")
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "polydec", "serve"),
            *("--model", "zoo:tiny", "--method", "plain", "--port", "0", "--drain", "1"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = next(x for x in server.stderr if "http://" in x).split()[1]
        until_ready(url)
        play("server_client", "--url", url, "--max-tokens", "8")
    finally:
        server.terminate()
        server.communicate(timeout=60)
    said = capsys.readouterr().out
    assert said.startswith("zoo:tiny: ") and "prompt-lookup: " in said and "tokens a pass" in said


def test_a_web_program_streams_answers(monkeypatch):
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    app = []
    monkeypatch.setattr("uvicorn.run", lambda made, port: app.append(made))
    play("fastapi_app", *TINY)
    model = polydec.load("zoo:tiny")
    prompts = [f"Once upon a time, {i}" for i in range(4)]

    async def ask_all():
        transport = httpx.ASGITransport(app[0])
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            asked = [client.get("/answer", params={"prompt": p}) for p in prompts]
            wrong = client.get("/answer", params={"prompt": "x", "temperature": -1})
            return await asyncio.gather(*asked, wrong)

    *answers, refused = asyncio.run(ask_all())
    want = [a.text for a in polydec.generate(model, prompts, max_tokens=12)]
    assert [a.text for a in answers] == want and all(want)
    assert refused.status_code == 400 and "temperature is -1" in refused.json()["detail"]


def hold_engine(engine, monkeypatch, requests, leaving):
    """Passes wait for all requests, and after some of them for those that leave: whatever the machine's speed, these leave in
    the middle of their answers. Gives the tickets that were cancelled."""
    submitted = []
    cancelled = []
    steps = []
    submit, cancel, step = engine.submit, engine.cancel, engine.step

    def note_submit(*given, **more):
        submitted.append(submit(*given, **more))
        return submitted[-1]

    def note_cancel(ticket):
        cancelled.append(ticket)
        return cancel(ticket)

    def step_in_turn():
        early = len(submitted) < requests
        if early or (len(steps) >= 6 and len(cancelled) < leaving):
            time.sleep(0.002)
            return []
        steps.append(1)
        return step()

    for name, made in (("submit", note_submit), ("cancel", note_cancel), ("step", step_in_turn)):
        monkeypatch.setattr(engine, name, made)
    return cancelled


def test_clients_of_the_web_program_leave_and_the_others_lose_nothing(monkeypatch):
    """Sixteen at once over real connections, half of which go away after the first piece."""
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    import uvicorn

    app = []
    model = polydec.load("zoo:tiny")
    with monkeypatch.context() as patch:
        patch.setattr(polydec, "load", lambda name: model)
        patch.setattr(uvicorn, "run", lambda made, port: app.append(made))
        play("fastapi_app", "--max-tokens", "80")
    engine = async_engine_of(model)
    cancelled = hold_engine(engine.engine, monkeypatch, 16, 8)
    prompts = [f"Once upon a time, {i}" for i in range(16)]
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app[0], log_level="critical"))
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"

    async def ask_once(client, at):
        async with client.stream("GET", "/answer", params={"prompt": prompts[at]}) as answer:
            if at % 2 == 0:
                return (await answer.aread()).decode()
            return await anext(answer.aiter_text())

    async def ask_all():
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            answers = await asyncio.gather(*(ask_once(client, at) for at in range(16)))
        server.should_exit = True
        await serving
        return answers

    answers = asyncio.run(asyncio.wait_for(ask_all(), 60))
    whole = [answer.text for answer in polydec.generate(model, prompts, max_tokens=80)]
    assert answers[::2] == whole[::2]
    assert len(cancelled) == 8 and all(map(str.startswith, whole[1::2], answers[1::2]))
    assert all(ticket.done for ticket in cancelled)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_kept_without_outputs(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    for cell in cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_events_are_called_by_their_names():
    """A name that no event has would show nothing, and raise nothing."""
    known = {c.__name__ for c in event_classes(TraceEvent)}
    named = list[str]()
    for path in (*EXAMPLES, *NOTEBOOKS):
        text = path.read_text("utf-8").replace('\\"', '"')
        named += re.findall(r'\)\.__name__ == "(\w+)"|\bcase "(\w+)"', text)
    names = ["".join(both) for both in named]
    assert len(names) >= 7 and set(names) <= known, set(names) - known


def event_classes(kind):
    return {kind}.union(*(event_classes(c) for c in kind.__subclasses__()))


CELLS = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell, drawn = InteractiveShell.instance(), 0
for source in sys.argv[1:]:
    ran = shell.run_cell(source)
    ran.raise_error()
    drawn += "text/html" in shell.display_formatter.format(ran.result)[0]
assert drawn, "nothing was drawn"
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path, tmp_path):
    """Its cells, in the shell that a kernel has."""
    pytest.importorskip("IPython", reason="IPython is not installed (polydec[dev])")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = forked.run("-c", CELLS, *sources, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_in_a_kernel(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (polydec[dev])")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (polydec[dev])")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (polydec[dev])")
    # The kernel is a process of its own: it finds the package where this one has it.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    book = nbformat.read(path, as_version=4)
    ran = nbclient.NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [o for cell in ran.cells for o in cell.get("outputs", ()) if "data" in o]
    assert any("text/html" in o["data"] for o in shown), "nothing was drawn"
