"""Two replicas by Ray answer as one; one is killed under load; a file of requests is spread over processes. Skipped where Ray
is not installed (polydec[ray])."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("ray", reason="ray is not installed (polydec[ray])")
pytest.importorskip("psutil", reason="psutil is needed to find a replica's process")
import httpx
import psutil

import micro
import polydec

WORDS = ("fox", "boat", "river", "baker", "train", "bridge", "king", "wood")


def body(i, **more):
    return {
        "prompt": f"The {WORDS[i % len(WORDS)]} and",
        "max_tokens": 8 + i % 9,
        "temperature": 0.9,
        "seed": i,
        **more,
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("micro"), context=4096))


@pytest.fixture
def fleet(model, tmp_path):
    """(its address, its process); it must end by itself after SIGTERM, with all that it started."""
    env = {k: v for k, v in os.environ.items() if k != "POLYDEC_API_KEY"}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "polydec",
            "serve",
            "--model",
            f"m={model}",
            "--replicas",
            "2",
            "--port",
            "0",
            "--drain",
            "2",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **env,
            "XDG_CACHE_HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )
    line = next((x for x in process.stderr if "http://" in x), "")
    url = line.split()[1] if line else ""
    try:
        ready(url, {"ready"})
        yield url, process
    finally:
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(60) == 0
            _, left = psutil.wait_procs(below, 20)
            assert not left, left
        finally:
            process.kill()


def ready(url, states, seconds=240):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            said = httpx.get(url + "/health", timeout=20).json()
            if set(said["replicas"].values()) == states:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("the replicas do not become ready")


def replicas(process):
    """Their processes."""
    return [
        p
        for p in psutil.Process(process.pid).children(recursive=True)
        if "ray::ServerReplica" in " ".join(p.cmdline())
    ]


def ask(url, i, stream, **more):
    """(text, error or None) of one request; every request ends in one of them."""
    with httpx.Client(base_url=url, timeout=120) as client:
        if not stream:
            answer = client.post("/v1/completions", json=body(i, **more))
            data = answer.json()
            return (
                (data["choices"][0]["text"], None)
                if answer.status_code == 200
                else ("", data["error"])
            )
        text, ended = "", None
        with client.stream("POST", "/v1/completions", json=body(i, stream=True, **more)) as answer:
            if answer.status_code != 200:
                return "", json.loads(answer.read())["error"]
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line:
                    event = json.loads(line[6:])
                    if "error" in event:
                        return text, event["error"]
                    text += "".join(c["text"] for c in event["choices"])
        assert ended, "a stream ended without its end"
        return text, None


def test_two_answer_as_one_and_one_is_killed_under_load(fleet, model):
    url, process = fleet
    lm = polydec.load(model)

    def right(i, **more):
        b = body(i, **more)
        return polydec.generate(
            lm,
            b["prompt"],
            raw=True,
            method="auto",
            max_tokens=b["max_tokens"],
            seed=i,
            ignore_eos=b.get("ignore_eos", False),
            sampling=lm.sampling_with(temperature=0.9),
        ).text

    with ThreadPoolExecutor(8) as pool:
        for i, (text, error) in enumerate(pool.map(lambda i: ask(url, i, i % 2), range(32))):
            assert error is None and text == right(i)
    answered = [
        x
        for x in httpx.get(url + "/metrics").text.splitlines()
        if x.startswith("vllm:request_success_total{")
    ]
    assert any('replica="0"' in x for x in answered) and any('replica="1"' in x for x in answered)
    assert sum(float(x.split()[-1]) for x in answered) == 32, (
        "a request was answered twice, or not counted"
    )
    assert (
        httpx.post(url + "/v1/completions", json=body(0, temperature=-1)).json()["error"]["param"]
        == "temperature"
    )

    long = {"max_tokens": 1500, "ignore_eos": True}
    with ThreadPoolExecutor(8) as pool:
        under_way = [pool.submit(ask, url, i, i % 2, **(long if i < 16 else {})) for i in range(32)]
        time.sleep(1.0)
        victim = replicas(process)[0]
        victim.kill()
        done = [future.result(timeout=240) for future in under_way]
    broken = [error for _, error in done if error is not None]
    assert broken and len(broken) < len(done), (
        "nothing was under way at the replica that was killed, or all of it was"
    )
    for i, (text, error) in enumerate(done):
        more = long if i < 16 else {}
        if error is None:
            assert text == right(i, **more), "an answer is not whole, or came twice"
        else:
            assert error["code"] in ("replica_died", "no_replica") and error["message"]
            assert i % 2, "a request of which nothing was handed on goes to the other replica"
            assert right(i, **more).startswith(text)
    ready(url, {"ready"})  # Ray has started it anew
    assert len(replicas(process)) == 2 and victim.pid not in {p.pid for p in replicas(process)}
    with ThreadPoolExecutor(8) as pool:
        for i, (text, error) in enumerate(pool.map(lambda i: ask(url, i, i % 2), range(16))):
            assert error is None and text == right(i)


def test_stopping_tells_those_under_way(fleet):
    url, process = fleet
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(ask, url, i, i, max_tokens=4000, ignore_eos=True) for i in range(2)]
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        for future in both:
            _, error = future.result(timeout=60)
            assert error is not None and error["code"] == "stopping"


def test_without_ray_it_is_said(monkeypatch, capfd):
    from polydec.cli import serve
    from polydec.cli.main import main

    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "ray" else object())
    monkeypatch.setattr(sys, "argv", ["polydec", "serve", "--replicas", "2"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and "polydec[ray]" in capfd.readouterr().err


@pytest.mark.parametrize(
    "cut", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "cut"]
)
def test_a_file_over_two_processes(tmp_path, model, cut):
    lines = [{"prompt": f"The {WORDS[i % len(WORDS)]} and {i}"} for i in range(24)]
    lines += [
        {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "x", "max_tokens": 3, "n": 2},
        },
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "y"}},
        {"prompt": ""},
    ]
    given = tmp_path / "in.jsonl"
    given.write_text("".join(json.dumps(x) + "\n" for x in lines), "utf-8")
    env = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }

    def command(out, *more):
        return [
            sys.executable,
            "-m",
            "polydec",
            "batch",
            str(given),
            str(tmp_path / out),
            "--model",
            model,
            "--method",
            "plain",
            "--max-running",
            "4",
            *more,
        ]

    if cut:  # killed, and gone on with: no row is lost, none is doubled
        process = subprocess.Popen(
            command("ray.jsonl", "--ray", "2"), stderr=subprocess.DEVNULL, env=env
        )
        end = time.monotonic() + 200
        while not ((tmp_path / "ray.jsonl").exists() and (tmp_path / "ray.jsonl").read_bytes()):
            assert time.monotonic() < end, "no row is written"
            time.sleep(0.05)
        below = psutil.Process(process.pid).children(recursive=True)
        for p in (psutil.Process(process.pid), *below):
            p.kill()
        process.wait()
    for args in (command("alone.jsonl"), command("ray.jsonl", "--ray", "2")):
        done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    alone, spread = (
        {r["line"]: r for r in map(json.loads, (tmp_path / name).read_text("utf-8").splitlines())}
        for name in ("alone.jsonl", "ray.jsonl")
    )
    assert len((tmp_path / "ray.jsonl").read_text("utf-8").splitlines()) == len(lines) == len(alone)
    for at, row in alone.items():
        other = spread[at]
        assert set(row) == set(other) and row["digest"] == other["digest"]
        assert row.get("text") == other.get("text") and row.get("error") == other.get("error")
        if row.get("response"):
            assert row["response"]["body"]["choices"] == other["response"]["body"]["choices"]
    assert "line 25" in spread[26]["error"]["message"] and "empty" in spread[27]["error"]
