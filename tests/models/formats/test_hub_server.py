"""The real huggingface_hub against a small Hub on this machine: what is asked of it, with which token, and what is fetched."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import forked

COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
FILES = {
    "README.md": b"text",
    "m[1]-Q8_0-00001-of-00002.gguf": b"GGUF first",
    "m[1]-Q8_0-00002-of-00002.gguf": b"GGUF second",
    "m[1]-Q2_K.gguf": b"GGUF other",
    "weights.pkl": b"no",
}


class SmallHub(BaseHTTPRequestHandler):
    """Answers for the repository some/model, to whoever has the token."""

    asked: list[tuple[str, str, str | None]]

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.asked.append((self.command, path, self.headers.get("Authorization")))
        if self.headers.get("Authorization") != "Bearer hf_of_this_test":
            self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/api/models/some/model/tree/"):
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
                for name, content in FILES.items()
            ]
            self.answer(200, json.dumps(rows).encode())
        elif path in ("/api/models/some/model", "/api/models/some/model/revision/main"):
            about = {
                "id": "some/model",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in FILES],
            }
            self.answer(200, json.dumps(about).encode())
        elif path.startswith(f"/some/model/resolve/{COMMIT}/"):
            name = path.rpartition("/")[2].replace("%5B", "[").replace("%5D", "]")
            content = FILES[name]
            self.answer(200, content, {"ETag": f'"{etag(content)}"', "X-Repo-Commit": COMMIT})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def answer(self, status, content, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args):
        pass


def etag(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def small_hub():
    asked = []
    handler = type("Handler", (SmallHub,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


def pulled(home, address, name, **more):
    """What `polydec pull NAME` answers in a process of its own, as huggingface_hub reads its settings once."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_"))}
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1"}
    settings |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return forked.run("-m", "polydec", "pull", name, env={**kept, **settings, **more})


def test_a_model_is_fetched_with_the_token_and_then_needs_no_network(small_hub, tmp_path):
    address, asked = small_hub
    done = pulled(tmp_path, address, "some/model:q8_0", HF_TOKEN="hf_of_this_test")
    assert done.returncode == 0, done.stderr
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / COMMIT
    first = snapshot / "m[1]-Q8_0-00001-of-00002.gguf"
    assert done.stdout == f"some/model:q8_0 is at {first} (0.0 MB)\n"
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == {
        name: content for name, content in FILES.items() if "Q8_0" in name
    }
    asked.clear()
    here = pulled(tmp_path, address, "some/model:q8_0", HF_TOKEN="hf_of_this_test")
    assert (here.stdout, here.stderr) == (done.stdout, "")
    assert not any("/resolve/" in path for _, path, _ in asked)
    asked.clear()
    again = pulled(tmp_path, address, "hf.co/some/model", HF_HUB_OFFLINE="1")
    assert again.returncode == 0 and str(first) in again.stdout and not asked


def test_without_the_token_the_reason_is_said(small_hub, tmp_path):
    address, asked = small_hub
    done = pulled(tmp_path, address, "some/model:q8_0")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(
        "polydec: model 'some/model:q8_0' is not there: the Hugging Face Hub has no such repository, or it is private"
    )
    assert {token for _, _, token in asked} == {None}
