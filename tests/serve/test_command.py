"""`polydec serve`: what it refuses to begin with, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import httpx

import micro
from polydec.cli import serve
from polydec.cli.main import main
from polydec.serve import gate, quotas, run
from polydec.serve.settings import RequestLimits


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("micro"), context=2048))


def start(tmp_path, *args, **env):
    keys = {k: v for k, v in os.environ.items() if k != "POLYDEC_API_KEY"}
    return subprocess.Popen(
        [sys.executable, "-m", "polydec", "serve", *args],
        stderr=subprocess.PIPE,
        text=True,
        env={**keys, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **env},
    )


@pytest.mark.parametrize(
    "args, says",
    [
        (("--host", "0.0.0.0"), "--without-key"),
        (("--port", "70000"), "65535"),
        (("--max-running", "0"), "running is 0"),
        (("--method", "nope"), "unknown"),
        (("--model", "a=zoo:tiny", "--model", "a=zoo:tiny"), "twice"),
        (("--api-key-file", "/nonexistent"), "cannot be read"),
        (("--drain", "-1"), "drain"),
        (("--max-positions", "some"), "auto"),
        (("--max-cache", "-1"), "max_cache"),
        (("--with", "b=x", "--model", "a=zoo:tiny"), "with is 'b=x'"),
        (("--compute", "int4", "--model", "zoo:tiny"), "compute"),
        (("--cache-dtype", "fp8", "--model", "zoo:tiny"), "cache_dtype"),
        (("--with", "nowhere", "--model", "zoo:tiny"), "nowhere"),
        (("--model", "zoo:none"), "zoo"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_what_it_refuses_to_begin_with(monkeypatch, capfd, args, says):
    monkeypatch.delenv("POLYDEC_API_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["polydec", "serve", "--port", "0", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    err = capfd.readouterr().err
    assert stop.value.code == 2 and says in err and "Traceback" not in err


def test_a_port_that_is_taken(monkeypatch, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(
            sys, "argv", ["polydec", "serve", "--port", str(taken.getsockname()[1])]
        )
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 2 and "cannot be served on" in capfd.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch, capfd):
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "fastapi" else name)
    monkeypatch.setattr(sys, "argv", ["polydec", "serve"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and "polydec[serve]" in capfd.readouterr().err


def test_nothing_else_imports_it():
    code = (
        "import sys, polydec.api, polydec.cli.main; "
        "print([m for m in ('fastapi', 'uvicorn', 'polydec.serve') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_a_key_from_a_file_and_a_drain_at_the_end(tmp_path, model):
    keys = tmp_path / "keys"
    keys.write_text("# ours\n0123456789abcdef\n")
    process = start(
        tmp_path,
        "--model",
        f"micro={model}",
        "--port",
        "0",
        "--api-key-file",
        str(keys),
        "--drain",
        "0.3",
        "--method",
        "plain",
        POLYDEC_API_KEY="fedcba9876543210",
    )
    try:
        said = [process.stderr.readline()]
        url = said[0].split()[1]
        while "ready" not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        key = {"authorization": "Bearer 0123456789abcdef"}
        with httpx.Client(base_url=url, timeout=60, headers=key) as client:
            assert httpx.get(url + "/v1/models").status_code == 401
            assert (
                httpx.get(
                    url + "/v1/models", headers={"authorization": "Bearer fedcba9876543210"}
                ).status_code
                == 200
            )
            body = {
                "prompt": "The",
                "max_tokens": 1900,
                "ignore_eos": True,
                "stream": True,
                "n": 16,
            }
            with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = (x for x in answer.iter_lines() if x)
                next(lines)
                process.send_signal(signal.SIGTERM)
                last = list(lines)[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopping"
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0 and "1 were cut" in err and "Traceback" not in err
    finally:
        process.kill()


def test_interrupts_end_it(tmp_path, model):
    process = start(tmp_path, "--model", model, "--port", "0")
    try:
        process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and "stopped" in err and "Traceback" not in err
    finally:
        process.kill()


def test_what_was_trained_goes_to_the_model_that_it_is_named_for():
    names = serve._named(["a=zoo:tiny", "zoo:smollm2"])
    assert names == {"a": "zoo:tiny", "zoo:smollm2": "zoo:smollm2"}
    assert serve._trained(["a=one", "zoo:smollm2=two", "a=three"], names) == {
        "a": ["one", "three"],
        "zoo:smollm2": ["two"],
    }
    assert serve._trained(["one"], {"a": "zoo:tiny"}) == {"a": ["one"]}
    with pytest.raises(
        ValueError, match=r"with is 'one'.*as NAME=one; NAME is one of a, zoo:smollm2"
    ):
        serve._trained(["one"], names)


def test_the_arithmetic_and_the_trained_parts_are_loaded(capsys):
    lm = serve._load(
        "zoo:reasoner",
        trained=["zoo:reasoner-prm"],
        loading={
            "draft": "none",
            "ngrams": "none",
            "threads": 1,
            "compute": "float32",
            "cache_dtype": "float16",
        },
        keep=4,
        method="plain",
    )
    assert [type(one).__name__ for one in lm.artefacts] == ["StepReward"]
    network = lm.checkpoint.lm.network
    assert (network.compute, network.cache_dtype) == ("float32", "float16")
    assert (
        "zoo:reasoner-prm is a process reward model, and plain does not read it: a-star-decoding"
        in capsys.readouterr().err
    )


def test_addresses():
    assert all(map(gate.is_loopback_address, ("127.0.0.1", "::1", "localhost", "127.8.8.8")))
    assert not any(
        map(gate.is_loopback_address, ("0.0.0.0", "::", "192.168.1.2", "example.org", ""))
    )
    run.check_address("0.0.0.0", ("a key that is long",), False)
    run.check_address("0.0.0.0", (), True)
    with pytest.raises(ValueError, match="--api-key-file"):
        run.check_address("::", (), False)


@pytest.mark.parametrize(
    "host, name",
    [
        ("localhost:80", "localhost"),
        ("[::1]:80", "[::1]"),
        ("::1", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
        ("evil.example:1", "evil.example"),
    ],
)
def test_host_names(host, name):
    assert gate._host(host) == name


@pytest.mark.parametrize(
    "text", ["", "# only a remark\n", "short\n", "two words here\n", "schlüssel-lang\n"]
)
def test_keys_that_keep_nobody_out(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ValueError, match="key"):
        quotas.read_keys(tmp_path / "keys", None)


def test_limits_are_checked():
    with pytest.raises(ValueError, match="seconds is 0"):
        RequestLimits(seconds=0)


def test_pieces_of_an_answer_are_sent_at_once():
    """Else the second piece waits until the client has confirmed the first: 40 ms a request on Linux."""
    with (
        run.open_listening_socket("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
