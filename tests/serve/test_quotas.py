"""What each API key may take: requests a minute, tokens a day, answers at a time; no key's use is another's."""

import http.client
import json

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

import httpx
from house import held_steps, served, wait_until
from starlette.testclient import TestClient

from polydec.base.errors import RequestError
from polydec.serve.admission import UNMEASURED
from polydec.serve.errors import RefusalError
from polydec.serve.gate import AccessGate, count_answers
from polydec.serve.metrics import ServerMetrics
from polydec.serve.quotas import ApiKey, KeyQuota, KeyUsage, counts_at_end, read_keys
from polydec.serve.request_log import RequestRecorder, ResponseCounts, record_of

ONE, OTHER = "the-key-of-one-client", "the-key-of-another"
DAY = 24 * 3600


class Clock:
    def __init__(self):
        self.now = 1000.25

    def __call__(self):
        return self.now


def refused(call):
    with pytest.raises(RefusalError) as told:
        call()
    return told.value


def test_requests_of_a_minute():
    clock = Clock()
    usage = KeyUsage(KeyQuota(requests=3), clock)
    for _ in range(3):
        usage.admit_request()
        clock.now += 10
    told = refused(usage.admit_request)
    assert (told.status, told.retry, told.code) == (429, 30, "rate_limit_exceeded")
    assert str(told).endswith("ask again in 30 seconds")
    clock.now += told.retry - 1
    told = refused(usage.admit_request)
    assert told.retry == 1, "it was let in before it said so"
    assert str(told).endswith("ask again in 1 second")
    clock.now += 1
    usage.admit_request()
    assert refused(usage.admit_request).retry == 10


def test_tokens_of_a_day():
    clock = Clock()
    usage = KeyUsage(KeyQuota(tokens=100), clock)
    for tokens in (60, 30, 25):
        usage.admit_request()
        usage.charge_tokens(tokens)
        clock.now += 3600
    told = refused(usage.admit_request)
    assert told.status == 429 and "115 tokens" in str(told)
    # The first 60 are enough to be forgotten; they are counted by the minute.
    assert DAY - 3 * 3600 - 60 < told.retry <= DAY - 3 * 3600
    clock.now += told.retry - 1
    assert refused(usage.admit_request).retry == 1
    clock.now += 1
    usage.admit_request()
    usage.charge_tokens(45)
    again = refused(usage.admit_request)
    assert 3500 < again.retry <= 3600


def test_tokens_of_a_day_take_bounded_memory():
    clock = Clock()
    usage = KeyUsage(KeyQuota(tokens=1 << 40), clock)
    for _ in range(5000):
        clock.now += 61
        usage.admit_request()
        usage.charge_tokens(7)
        usage.charge_tokens(7)
    assert len(usage._tokens) <= 1441


def test_answers_at_a_time():
    clock = Clock()
    usage = KeyUsage(KeyQuota(answers=3), clock)
    first = usage.begin_answers(2)
    usage.begin_answers(1)
    told = refused(lambda: usage.begin_answers(1))
    assert (told.status, told.retry) == (429, UNMEASURED)
    assert refused(lambda: usage.begin_answers(4)).status == 400, "it could never be let in"
    clock.now += 20
    first()
    usage.begin_answers(2)
    # The oldest has run for 20 seconds, as long as the only one that has ended did.
    assert refused(lambda: usage.begin_answers(1)).retry == 1
    assert refused(lambda: usage.begin_answers(2)).retry == 20
    clock.now += 5
    assert refused(lambda: usage.begin_answers(2)).retry == 15


def test_no_limits_count_nothing():
    usage = KeyUsage(KeyQuota(), Clock())
    for _ in range(1000):
        usage.admit_request()
        usage.begin_answers(1000)
        usage.charge_tokens(1 << 30)
    assert not usage._requests and not usage._tokens and not usage._open


@pytest.mark.parametrize("limit", ["requests", "tokens", "answers"])
def test_clients_with_keys_have_quotas_of_their_own(limit):
    clock = Clock()

    async def endpoint(scope, receive, send):
        if scope["method"] == "POST":
            count_answers(scope, 1)
            record_of(scope).counts = ResponseCounts(prompt=4, output=6)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    keys = (ApiKey(ONE, "one", KeyQuota(**{limit: 1})), ApiKey(OTHER, "", KeyQuota(**{limit: 1})))
    gate = AccessGate(endpoint, keys, ServerMetrics(), local=False, clock=clock)

    def ask(key, verb="POST"):
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        return TestClient(RequestRecorder(gate)).request(verb, "/v1/completions", headers=headers)

    assert ask(ONE).status_code == 204
    if limit == "answers":
        assert ask(ONE).status_code == 204, "the first one has ended"
        gate.quotas.usage_of("key-0").begin_answers(1)
        with pytest.raises(RefusalError):
            ask(ONE)
    else:
        told = ask(ONE)
        assert told.status_code == 429 and int(told.headers["retry-after"]) > 0
        assert told.json()["error"]["type"] == "rate_limit_error"
        assert ask(ONE).status_code == 429 and ask(ONE, "GET").status_code == 204
    assert ask(OTHER).status_code == 204, "another client's use counted"
    clock.now += DAY + 60
    if limit != "answers":
        assert ask(ONE).status_code == 204


def test_a_server_keeps_quotas(lm):
    keys = (ApiKey(ONE, "one", KeyQuota(answers=2, tokens=30)), ApiKey(OTHER))
    body = {"prompt": [5, 6, 7], "max_tokens": 6, "method": "plain", "ignore_eos": True}
    with (
        served({"tiny": lambda: lm}, keys=keys) as house,
        house.client(headers={"authorization": f"Bearer {ONE}"}) as one,
        house.client(headers={"authorization": f"Bearer {OTHER}"}) as other,
    ):
        many = one.post("/v1/completions", json={**body, "n": 3})
        assert many.status_code == 400 and many.json()["error"]["param"] == "n"
        assert one.post("/v1/completions", json={**body, "n": 2}).status_code == 200  # 15 tokens
        with one.stream("POST", "/v1/completions", json={**body, "n": 2, "stream": True}) as left:
            left.read()  # 15 more
        told = one.post("/v1/completions", json=body)
        assert told.status_code == 429 and 86000 < int(told.headers["retry-after"]) <= 86400
        assert "30 tokens" in told.json()["error"]["message"]
        assert one.post("/v1/embeddings", json={"input": "x"}).status_code == 429
        assert one.get("/v1/models").status_code == 200
        assert other.post("/v1/completions", json={**body, "n": 9}).status_code == 200


SEARCHED = {
    "prompt": [5, 6, 7],
    "max_tokens": 40,
    "method": "self-consistency",
    "temperature": 1.0,
    "ignore_eos": True,
}


def test_a_quota_counts_texts_that_a_search_throws_away(lm):
    """Else a client has many times its tokens by a method that tries many texts for one answer."""
    keys = (ApiKey(ONE, "one", KeyQuota(tokens=1 << 20)),)
    with (
        served({"tiny": lambda: lm}, keys=keys) as house,
        house.client(headers={"authorization": f"Bearer {ONE}"}) as one,
    ):
        gate = house.app.middleware_stack
        while not isinstance(gate, AccessGate):
            gate = gate.app
        usage = gate.quotas.usage_of("key-0")

        def taken():
            return sum(count for _, count in usage._tokens)

        assert one.post("/v1/completions", json=SEARCHED).json()["usage"]["total_tokens"] == 43
        # What was used is counted once the answer has gone out.
        wait_until(taken)
        whole = taken()
        assert whole >= 3 + 4 * 40, "the texts that lost a vote cost nothing"
        # Whoever leaves before the end pays for what was written until then: the eighth step waits
        # until the server has seen that the client is gone.
        with held_steps(house, at=8) as hold:
            asking = http.client.HTTPConnection("127.0.0.1", httpx.URL(house.url).port)
            head = {"authorization": f"Bearer {ONE}", "content-type": "application/json"}
            asking.request("POST", "/v1/completions", json.dumps(SEARCHED), head)
            assert hold.reached.wait(60)
            asking.close()
            assert hold.go.wait(60), "the server did not see that its client had left"
            wait_until(lambda: taken() != whole)
        assert 3 + 8 < taken() - whole < whole


def test_a_file_of_keys_with_limits(tmp_path):
    path = tmp_path / "keys"
    path.write_text(
        f"# ours\n{ONE} name=ci requests=60  tokens=200000 answers=4\n\n  {OTHER}  \nkey=with==signs requests=0\n"
    )
    keys = read_keys(path, "from-the-environment")
    assert keys == (
        ApiKey(ONE, "ci", KeyQuota(60, 200000, 4)),
        ApiKey(OTHER),
        ApiKey("key=with==signs"),
        ApiKey("from-the-environment"),
    )
    assert read_keys(path, OTHER) == keys[:3]
    assert [counts_at_end(key.quota) for key in keys] == [True, False, False, False]


@pytest.mark.parametrize(
    "line, why",
    [
        ("requests=-1", "requests is '-1': it must be a whole number"),
        ("requests=6.5", "whole number"),
        ("tokens=", "whole number"),
        ("answers=70000", "answers is 70000: it must lie in 0 to 65536"),
        ("requests=1 requests=2", "each once"),
        ("request=1", "requests=…"),
        ("second-word", "requests=…"),
        ("name=" + "x" * 65, "at most 64 characters"),
        ("name=ä", "printable ASCII"),
    ],
)
def test_what_is_no_limit_is_refused_and_the_key_is_not_told(tmp_path, line, why):
    path = tmp_path / "keys"
    path.write_text(f"{OTHER}\n{ONE} {line}\n", "utf-8")
    with pytest.raises(RequestError) as told:
        read_keys(path, None)
    assert why in str(told.value) and "line 2" in str(told.value)
    assert ONE not in str(told.value) and "second-word" not in str(told.value)


@pytest.mark.parametrize("lines", [f"{ONE}\n{ONE}", f"{ONE} name=a\n{OTHER} name=a"])
def test_what_stands_twice_is_refused(tmp_path, lines):
    path = tmp_path / "keys"
    path.write_text(lines)
    with pytest.raises(RequestError, match="in two lines"):
        read_keys(path, None)
