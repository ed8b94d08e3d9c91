"""No client shuts out another one: each has a share of what runs and of what waits, and is told how long to wait."""

import threading
from collections import Counter

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from concurrent.futures import ThreadPoolExecutor

from house import served

from polydec import Ask, Engine
from polydec.request.fair_queue import FairQueue, can_start_answers
from polydec.serve.admission import (
    UNMEASURED,
    AdmissionControl,
    RequestLoad,
    TokenPace,
    seconds_until,
)
from polydec.serve.clients import ClientIdentity, address_of
from polydec.serve.errors import RefusalError
from polydec.serve.settings import RequestLimits

KEYS = ("key-of-one-client", "key-of-the-other")
LIMITS = RequestLimits(running=4, waiting=4)
HOGS = {
    "n": [{"n": 8}],
    "prompts": [{"prompt": ["x", "y", "z", "u"], "n": 2}],
    "requests": [{}] * 8,
}
LONG = {"prompt": "The fox", "ignore_eos": True, "method": "plain", "max_tokens": 60}


@pytest.fixture(scope="module")
def full(lm):
    with served({"tiny": lambda: lm}, keys=KEYS, limits=LIMITS) as house:
        yield house


@pytest.mark.parametrize("kind", HOGS)
def test_who_holds_less_than_its_share_gets_in(full, kind, monkeypatch):
    """By what has been written when the other one's answer comes: no clock."""
    one, other = (full.client(headers={"authorization": f"Bearer {key}"}) for key in KEYS)
    worker, everybody_came = full.worker, threading.Event()
    step = worker.engine.step

    def slow_step():
        # Else a fast machine has ended the first ones before the last ones came.
        everybody_came.wait(0.05)
        return step()

    monkeypatch.setattr(worker.engine, "step", slow_step)
    with one, other, ThreadPoolExecutor(8) as pool:
        hogs = [pool.submit(one.post, "/v1/completions", json={**LONG, **x}) for x in HOGS[kind]]
        while worker.answers < 8:
            assert not any(x.done() for x in hogs), "they ended before all had come"
            threading.Event().wait(0.005)
        everybody_came.set()
        late = one.post("/v1/completions", json={**LONG, "max_tokens": 1})
        assert late.status_code == 429 and int(late.headers["retry-after"]) >= 1
        assert "8 of them yours" in late.json()["error"]["message"]
        answer = other.post("/v1/completions", json={**LONG, "max_tokens": 4})
        assert answer.status_code == 200, answer.text
        assert not all(x.done() for x in hogs), "they ended before the other one's answer came"
        assert all(x.result().status_code == 200 for x in hogs)
    assert not worker.answers and not worker.admission.under_way


def test_requests_of_who_asks_much_are_not_checked_first(full, monkeypatch):
    one, other = (full.client(headers={"authorization": f"Bearer {key}"}) for key in KEYS)
    worker, checked, go = full.worker, list[str](), threading.Event()
    plan = worker._plan

    def slow(jobs):
        assert go.wait(60)
        checked.append(jobs[0].account)
        plan(jobs)

    monkeypatch.setattr(worker, "_plan", slow)
    body = {"prompt": "x", "max_tokens": 1}
    with one, other, ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(one.post, "/v1/completions", json=body) for _ in range(4)]
        while len(worker._unplanned) < 3:
            threading.Event().wait(0.005)
        sent.append(pool.submit(other.post, "/v1/completions", json=body))
        while len(worker._unplanned) < 4:
            threading.Event().wait(0.005)
        go.set()
        assert {x.result().status_code for x in sent} == {200}
    assert checked == ["key-0", "key-1", "key-0", "key-0", "key-0"]


def test_without_keys_an_address_is_a_client():
    def at(host):
        return address_of({"client": (host, 1)})

    assert at("10.0.0.1") == at("::ffff:10.0.0.1") == "10.0.0.1"
    assert at("2001:db8::1") == at("2001:db8:0:0:ffff::7") != at("2001:db8:1::1")
    assert address_of({"client": None}) == address_of({}) == ""
    assert ClientIdentity("", "10.0.0.1").account == "10.0.0.1"
    assert (
        ClientIdentity("key-0", "10.0.0.1").account == ClientIdentity("key-0", "10.0.0.2").account
    )


def test_shares_of_those_that_wait():
    admission = AdmissionControl(RequestLimits(running=4, waiting=4), TokenPace())

    def come(account, count):
        try:
            admission.admit_answers(account, count, list)
        except RefusalError:
            return False
        admission.begin_answers(account, count)
        return True

    assert come("a", 8) and not come("a", 1)
    assert not come("b", 5) and come("b", 4) and not come("b", 1)
    assert come("c", 2) and not come("c", 1) and not come("a", 1)
    # each of n accounts has a whole share at least once: all together an n-th harmonic number of them
    counts = Counter(dict.fromkeys("defghijk", 0))
    for name in counts:
        while come(name, 1):
            counts[name] += 1
    assert list(counts.values())[:2] == [2, 1] and admission.under_way.total() <= 8 * 3
    admission.end_answers("a", 8)
    admission.end_answers("b", 4)
    assert "a" not in admission.under_way


def test_the_wait_is_what_the_rate_makes_of_what_is_left():
    now = [0.0]
    pace = TokenPace(lambda: now[0])
    admission = AdmissionControl(RequestLimits(running=4, waiting=4, seconds=600), pace)
    loads = [RequestLoad("a", 4, 100.0, True), RequestLoad("a", 4, 100.0, False)]
    admission.begin_answers("a", 8)

    def wait(account="a", count=1):
        with pytest.raises(RefusalError) as refused:
            admission.admit_answers(account, count, lambda: loads)
        assert refused.value.status == 429
        return refused.value.retry

    assert wait() == UNMEASURED
    for second in range(11):
        now[0] = float(second)
        pace.note_tokens(40)
    assert pace.rate == 40.0
    assert wait() == 10  # 400 tokens of those that run, at 40 a second
    assert wait(count=5) == 20  # and of all
    for _ in range(11):
        now[0] += 1.0
        pace.note_tokens(4)
    assert wait() == 100
    for _ in range(200):
        now[0] += 1.0
    assert pace.rate == 4.0 and wait() == 100, "a pause is no rate"
    loads[0] = RequestLoad("a", 4, 1e9, True)
    assert wait() == 600
    pace.note_ended_answer(50, 100)
    pace.note_ended_answer(100, 100)
    assert pace.used == 0.75
    assert (
        seconds_until(3, [RequestLoad("", 2, 10.0, True), RequestLoad("", 2, 30.0, True)], 4.0)
        == 30.0
    )
    assert (
        seconds_until(2, [RequestLoad("", 2, 10.0, True), RequestLoad("", 2, 30.0, True)], 4.0)
        == 10.0
    )


def test_the_queue_is_fair():
    queue, running = FairQueue[int](), Counter({"a": 3})
    for at, client in enumerate("aabab"):
        queue.add_item(client, at)
    order = list[int]()
    while queue:
        client, item = queue.first_client(running)
        assert queue.take_first(client) == item
        running[client] += 1
        order.append(item)
    assert order == [2, 4, 0, 1, 3] and len(queue) == 0
    assert can_start_answers("a", 2, Counter({"a": 2}), 4) and not can_start_answers(
        "a", 3, Counter({"a": 2}), 4
    )
    assert can_start_answers("b", 2, Counter({"a": 9}), 4) and not can_start_answers(
        "b", 3, Counter({"a": 9}), 4
    )
    assert not can_start_answers("b", 2, Counter({"a": 9, "b": 1}), 4) and can_start_answers(
        "b", 1, Counter({"a": 9, "b": 1}), 4
    )
    many = Counter({str(i): 1 for i in range(4)})
    assert not can_start_answers("e", 1, many, 4), "nobody has more than its share"


def test_an_engine_shares_what_runs_and_keeps_texts(lm):
    prompts = [f"The fox {i}" for i in range(6)]
    fields = {"max_tokens": 12, "method": "plain", "ignore_eos": True}
    engine = Engine(lm, max_running=2)
    hog = engine.submit(Ask(prompts[0], n=4, seed=1, **fields), client="a")
    more = [engine.submit(p, client="a", **fields) for p in prompts[1:5]]
    other = engine.submit(prompts[5], client="b", **fields)
    engine.step()
    assert hog.task is not None and other.task is not None
    assert all(ticket.task is None for ticket in more)
    engine.run([hog, *more, other])
    alone = Engine(lm)
    assert other.completion().text == alone.run([alone.submit(prompts[5], **fields)])[0].text
    mine = Engine(lm, max_running=2)
    first, second = (mine.submit(prompts[i], n=2, client="", **fields) for i in range(2))
    mine.step()
    assert first.task is not None and second.task is None, "first come first served"
    mine.run([first, second])
