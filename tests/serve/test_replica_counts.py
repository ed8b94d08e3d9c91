"""Two replicas keep one log, and what a key may take holds for both together. They run in threads (see test_replicas.py)."""

import json
import threading
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")
import httpx
from house import held_steps, served, wait_until

from polydec.serve.clients import ClientIdentity, from_header
from polydec.serve.quotas import ApiKey, KeyQuota
from polydec.serve.replica_front import ReplicaFleet, count_asked_answers, create_front
from polydec.serve.request_log import REQUEST_ID, RequestLog
from polydec.serve.run import DrainingServer, open_listening_socket, uvicorn_config
from polydec.serve.settings import RequestLimits

ONE, OTHER = "the-key-of-one-client", "the-key-of-another"
SECRET = "a text that nobody logs"
BODY = {"prompt": [5, 6, 7], "max_tokens": 6, "method": "plain", "ignore_eos": True}


class ThreadedReplica:
    """A real server in a thread, as the fleet knows an actor of Ray's."""

    def __init__(self, house):
        self.house = house
        self.current_state = self

    async def remote(self):
        models = self.house.models
        return int(self.house.url.rpartition(":")[2]), models.states, models.failed


@contextmanager
def front_of_two(lm, wrapped=lambda app: app, **given):
    """The address of a front, and its replicas, which share a loaded model. wrapped: what stands before it."""
    with ExitStack() as stack:
        houses = []

        def start(key):
            house = served({"tiny": lambda: lm}, keys=(key,), replica=True)
            houses.append(stack.enter_context(house))
            return ThreadedReplica(houses[-1])

        fleet = ReplicaFleet(2, start, ("tiny",), lambda actor: None)
        app = create_front(fleet, limits=RequestLimits(), **given)
        sock = open_listening_socket("127.0.0.1", 0)
        seen = wrapped(app)
        server = DrainingServer(uvicorn_config(seen, 0.2, "critical"), fleet, 0.2)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: len(fleet.ports) == 2)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}", houses
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the front does not end"


def client(url, key=ONE):
    return httpx.Client(base_url=url, timeout=60, headers={"authorization": f"Bearer {key}"})


def lines_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("texts", [False, True])
def test_one_log_has_a_line_for_each_request(lm, tmp_path, texts):
    path = tmp_path / "requests.jsonl"
    keys = (ApiKey(ONE, "ci"),)
    log = RequestLog(str(path), texts)
    with front_of_two(lm, keys=keys, request_log=log) as (url, houses):
        with client(url) as http:
            for at in range(6):
                body = {**BODY, "n": 2, "stream": at % 2 == 1, "prompt": SECRET + str(at)}
                told = http.post("/v1/completions", json=body, headers={REQUEST_ID: f"n{at}"})
                assert told.status_code == 200
            http.post("/v1/embeddings", json={"input": SECRET}, headers={REQUEST_ID: "vectors"})
            http.post("/v1/completions", json={"x": 1}, headers={REQUEST_ID: "wrong"})
            http.get("/v1/models", headers={REQUEST_ID: "models"})
            hidden = http.get("/replica/counts/name", headers={REQUEST_ID: "hidden"})
            assert hidden.status_code == 404
            long = {**BODY, "max_tokens": 400, "stream": True}
            # It waits in its work until its client has left: a fast machine would have ended it.
            with held_steps(*houses, at=20) as hold:
                with http.stream(
                    "POST", "/v1/completions", json=long, headers={REQUEST_ID: "left"}
                ) as left:
                    next(left.iter_lines())
                assert hold.go.wait(60), "no replica saw that the client had left"
            wait_until(lambda: path.exists() and len(lines_of(path)) == 11)
        counted = [answered(house) for house in houses]
    lines = {line["id"]: line for line in lines_of(path)}
    assert len(lines) == len(lines_of(path)) == 11, "one line for each request"
    assert min(counted) > 0, "one replica answered all"
    for at in range(6):
        line = lines[f"n{at}"]
        assert (line["model"], line["method"], line["client"]) == ("tiny", "plain", "ci")
        assert line["output_tokens"] == 12 and line["finish_reasons"] == ["length", "length"]
        assert line["prompt_tokens"] > 2 and line["cached_tokens"] is not None
        assert 0 < line["first_token_ms"] <= line["total_ms"] and line["status"] == 200
        assert texts == (SECRET in line.get("request", ""))
        assert texts == (len(line.get("answers", [])) == 2)
    assert lines["vectors"]["prompt_tokens"] > 2 and lines["vectors"]["output_tokens"] == 0
    assert lines["wrong"]["status"] == 400 and lines["wrong"]["output_tokens"] is None
    assert lines["models"]["output_tokens"] is None and lines["hidden"]["status"] == 404
    left = lines["left"]
    assert left["finish_reasons"] == ["left"] and 0 < left["output_tokens"] < 400
    assert texts or SECRET not in path.read_text("utf-8")


class AsksAgain:
    """Sends a request of its own whenever a response is about to end, before its client can know of it."""

    def __init__(self, app):
        self.app = app
        self.inside = httpx.ASGITransport(app)
        self.told = []

    async def __call__(self, scope, receive, send):
        async def asks_first(message):
            body = message.get("body", b"")
            last = b"[DONE]" in body or b"event: response.completed" in body
            if message["type"] == "http.response.body" and (last or not message.get("more_body")):
                headers = {"authorization": f"Bearer {ONE}"}
                async with httpx.AsyncClient(
                    transport=self.inside, base_url="http://localhost", headers=headers
                ) as again:
                    self.told.append((await again.post("/v1/completions", json=BODY)).status_code)
            await send(message)

        served_one = scope["type"] == "http" and scope["path"] != "/health"
        await self.app(scope, receive, asks_first if served_one else send)


@contextmanager
def one_house(lm, wrapped, **given):
    with served({"tiny": lambda: lm}, wrapped=wrapped, **given) as house:
        yield house.url, [house]


COMPLETION = {"prompt": [5, 6, 7], "max_tokens": 6}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 6}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", COMPLETION),
        ("/v1/completions", {**COMPLETION, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 6, "stream": True}),
    ],
)
@pytest.mark.parametrize("quota", [KeyQuota(tokens=1), KeyQuota(answers=1)])
@pytest.mark.parametrize("running", [front_of_two, one_house])
def test_who_has_read_the_end_is_counted(lm, running, quota, path, body):
    """Tokens are charged, and the place of an answer is free again, before the last event is sent."""
    wanted = 429 if quota.tokens else 200
    asking = list[AsksAgain]()

    def wrapped(app):
        asking.append(AsksAgain(app))
        return asking[0]

    with running(lm, wrapped, keys=(ApiKey(ONE, "one", quota),)) as (url, _):
        with client(url) as one:
            told = one.post(path, json={"method": "plain", **body})
        assert told.status_code == 200, told.text
        assert asking[0].told and set(asking[0].told) == {wanted}


def test_a_front_counts_what_a_search_threw_away(lm):
    """Tokens of texts that a beam search gave up were computed for the client."""
    keys = (ApiKey(ONE, "one", KeyQuota(tokens=20)),)
    with front_of_two(lm, keys=keys) as (url, _), client(url) as one:
        wide = {"prompt": [5], "max_tokens": 6, "method": "beam", "options": {"width": 8}}
        told = one.post("/v1/completions", json=wide)
        assert told.status_code == 200, told.text
        assert told.json()["usage"]["total_tokens"] < 20, "the answer alone would use it up"
        assert one.post("/v1/completions", json=BODY).status_code == 429


def answered(house):
    """How many answers of a replica have ended well."""
    counter = house.app.state.models.metrics.success
    return sum(s.value for family in counter.collect() for s in family.samples)


def test_quotas_hold_for_the_sum_of_the_replicas(lm):
    keys = (ApiKey(ONE, "one", KeyQuota(answers=2, tokens=60)), ApiKey(OTHER))
    with front_of_two(lm, keys=keys) as (url, houses):
        with client(url) as one, client(url, OTHER) as other:
            many = one.post("/v1/completions", json={**BODY, "n": 3})
            assert many.status_code == 400 and many.json()["error"]["param"] == "n"
            prompts = {**BODY, "prompt": [[5, 6], [7, 8], [9, 5]]}
            assert one.post("/v1/completions", json=prompts).status_code == 400
            # Two of 15 tokens go to each replica: neither alone has seen 60.
            long = {**BODY, "max_tokens": 400, "stream": True, "n": 2}
            for at in range(4):
                body = {**BODY, "n": 2, "stream": at % 2 == 1}
                assert one.post("/v1/completions", json=body).status_code == 200, at
            told = one.post("/v1/completions", json=BODY)
            assert told.status_code == 429 and "60 tokens" in told.json()["error"]["message"]
            assert other.post("/v1/completions", json={**BODY, "n": 9}).status_code == 200
            assert one.get("/v1/models").status_code == 200
        assert min(answered(house) for house in houses) >= 2, "one replica answered all"
    keys = (ApiKey(ONE, "one", KeyQuota(answers=3)),)
    with front_of_two(lm, keys=keys) as (url, houses):
        with client(url) as one, client(url) as again:
            with (
                held_steps(*houses, at=20) as hold,
                one.stream("POST", "/v1/completions", json=long) as under_way,
            ):
                next(under_way.iter_lines())
                told = again.post("/v1/completions", json={**BODY, "n": 2})
                assert told.status_code == 429 and "answers" in told.json()["error"]["message"]
                hold.go.set()
                assert again.post("/v1/completions", json=BODY).status_code == 200
            wait_until(
                lambda: again.post("/v1/completions", json={**BODY, "n": 3}).status_code == 200
            )
        assert min(answered(house) for house in houses) >= 1


@pytest.mark.parametrize(
    ("path", "fields", "count"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "n": 3}, 6),
        ("/v1/completions", {"prompt": [5, 6], "n": 3, "best_of": 4}, 4),
        ("/v1/completions", {"prompt": "a", "n": "3"}, 1),
        ("/v1/chat/completions", {"messages": [], "n": 2, "prompt": ["a", "b"]}, 2),
        ("/v1/responses", {"input": "a"}, 1),
        ("/v1/embeddings", {"input": ["a", "b"]}, 1),
        ("/tokenize", {"prompt": "a", "n": 2}, 0),
    ],
)
def test_answers_are_counted_as_replicas_do(path, fields, count):
    assert count_asked_answers(path, fields) == count


def test_a_front_without_keys_hands_requests_on(lm):
    # Nobody has a credential then, and half of what the front says of its client is empty.
    with front_of_two(lm) as (url, _), httpx.Client(base_url=url, timeout=60) as anyone:
        for _ in range(2):
            answer = anyone.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 2})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("credential", ["", "key-0"])
@pytest.mark.parametrize("address", ["", "127.0.0.1", "2001:db8::"])
def test_a_replica_reads_who_asked(credential, address):
    asked = ClientIdentity(credential, address)
    text = asked.to_header()
    assert from_header(text) == asked and text == text.strip()
