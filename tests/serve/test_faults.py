"""Clients that leave, bodies that are damaged: nothing is lost, mixed or left over, and the server lives."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house
import httpx
from test_api import idle, post

import micro
import polydec
from polydec.serve.settings import RequestLimits

WORDS = ("fox", "boat", "river", "baker", "train", "bridge")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        path = str(micro.write(directory / "model"))
        with house.served(
            {"micro": lambda: polydec.load(path)}, limits=RequestLimits(running=8, waiting=64)
        ) as served:
            yield served


def body(i):
    return {
        "prompt": f"The {WORDS[i % len(WORDS)]} and",
        "max_tokens": 4 + i % 9,
        "temperature": 0.9,
        "seed": i % 7,
        "n": 1 + i % 3,
        "method": ("plain", "prompt-lookup", "token-recycling")[i % 3],
        "stop": [" x"] * (i % 2),
    }


def streamed(client, i, left):
    """What a stream wrote to each answer by its line `left` (None: its end); None where the server has no room just now."""
    parts = [""] * body(i)["n"]
    with client.stream("POST", "/v1/completions", json={**body(i), "stream": True}) as answer:
        if answer.status_code == 429:
            return None
        for count, line in enumerate(x for x in answer.iter_lines() if x):
            if count == left or line == "data: [DONE]":
                break
            for c in json.loads(line[6:])["choices"]:
                parts[c["index"]] += c["text"]
    return parts


def until_there_is_room(ask):
    """What `ask` gives once it is not None: a client that is told 429 comes again."""
    end = time.monotonic() + 300
    while (found := ask()) is None:
        assert time.monotonic() < end, "the server has no room for five minutes"
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    "clients, visits", [(16, 100), pytest.param(64, 2000, marks=pytest.mark.slow)]
)
def test_clients_that_come_and_go(server, clients, visits):
    with server.client() as client:
        right = {i: [c["text"] for c in post(client, body(i))["choices"]] for i in range(24)}
    seen, lock = {"whole": 0, "left": 0, "refused": 0}, threading.Lock()

    def visit(at):
        rng, i = random.Random(at), at % 24
        what = rng.choice(("whole", "stream", "leave", "leave at once", "malformed"))
        with server.client() as client:
            if what == "malformed":
                answer = client.post(
                    "/v1/completions",
                    content=json.dumps(body(i))[: -rng.randrange(1, 9)],
                    headers={"content-type": "application/json"},
                )
                assert answer.status_code == 400
                kind = "refused"
            elif what == "whole":
                answer = until_there_is_room(
                    lambda: (
                        given
                        if (given := client.post("/v1/completions", json=body(i))).status_code
                        != 429
                        else None
                    )
                )
                assert (
                    answer.status_code == 200
                    and [c["text"] for c in answer.json()["choices"]] == right[i]
                )
                kind = "whole"
            elif what == "leave at once":
                with suppress(httpx.TimeoutException):
                    answer = client.post(
                        "/v1/completions",
                        timeout=0.01,
                        json={**body(i), "max_tokens": 200, "ignore_eos": True},
                    )
                    assert answer.status_code == 429, "it was answered sooner than it can be"
                kind = "left"
            else:
                left = rng.randrange(1, 6) if what == "leave" else None
                parts = until_there_is_room(lambda: streamed(client, i, left))
                assert all(whole.startswith(part) for whole, part in zip(right[i], parts))
                assert left is not None or parts == right[i]
                kind = "left" if left is not None else "whole"
        with lock:
            seen[kind] += 1

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(visit, range(visits)))
    assert sum(seen.values()) == visits and min(seen.values()) > visits // 16
    assert idle(server), (server.worker.live, server.worker.answers)
    assert not server.worker.engine._running and not server.worker.engine._waiting


def mutated(rng):
    """A request with something wrong, or nothing, with it."""
    data = {**body(rng.randrange(24)), "max_tokens": 2}
    values = [
        None,
        True,
        -1,
        0,
        1,
        3.5,
        1e308,
        10**40,
        "",
        "x",
        "\u0000",
        "9" * 200,
        [],
        [None],
        [[]],
        {},
        {"a": {}},
        [1, 2],
        [-1],
    ]
    for _ in range(rng.randrange(3)):
        data[
            rng.choice(
                [
                    *data,
                    "stream_options",
                    "logprobs",
                    "options",
                    "logit_bias",
                    "top_p",
                    "echo",
                    "nonsense",
                    "order",
                    "stop_token_ids",
                    "min_tokens",
                    "polydec",
                    "model",
                    "tools",
                    "suffix",
                ]
            )
        ] = rng.choice(values)
    text = bytearray(json.dumps(data).encode())
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        text[rng.randrange(len(text))] = rng.randrange(256)
    return bytes(text)


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_bodies(server, count):
    rng, codes = random.Random(5), []
    with server.client() as client:
        for _ in range(count):
            text = mutated(rng)
            answer = client.post(
                "/v1/completions", content=text, headers={"content-type": "application/json"}
            )
            codes.append(answer.status_code)
            assert answer.status_code in (200, 400, 404), (text, answer.text)
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert 0 < len(error["message"]) <= 300 and error["message"].isprintable(), text
        assert min(codes.count(200), codes.count(400)) > count // 10
        assert client.get("/health").json()["status"] == "ready"
    assert idle(server)


@pytest.mark.parametrize(
    "poison",
    [
        {"guided_json": {"const": -(2**63)}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [-(2**63)]}}}},
        {"guided_grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3000)) + 'r3000: "a"'},
        {"guided_json": {"properties": {"k": 5}, "required": [[-1]]}},
        {"guided_choice": ["\ud800"]},
    ],
    ids=lambda x: str(x)[:40],
)  # fmt: skip
def test_a_constraint_that_would_end_the_server_is_a_400(server, poison):
    with server.client() as client:
        text = json.dumps({"prompt": "The", "max_tokens": 2, **poison})
        sent = {"Content-Type": "application/json"}
        answer = client.post("/v1/completions", content=text, headers=sent)
        assert answer.status_code == 400 and answer.json()["error"]["param"] in poison, answer.text
        assert client.get("/health").status_code == 200
        after = client.post(
            "/v1/completions", json={"prompt": "The", "max_tokens": 2, "guided_regex": "[a-z]+"}
        )
        assert after.status_code == 200, after.text
