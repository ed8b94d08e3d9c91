"""The attack on a running server: a short one finds nothing, and what it looks for it sees."""

import json
import sys

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

from polydec.lab.fuzz import attack, fuzz_requests
from polydec.lab.fuzz.attack import HealthProbe, InputInterval, ServerReply


def test_a_short_attack(server):
    """Against the server of these tests, without what takes long: `make attack` has a process for it."""
    host, port = server.url.removeprefix("http://").split(":")
    right = attack._written(
        attack.send_input((host, int(port)), fuzz_requests.reference_input()).text
    )
    assert right
    numbers = [n for n in range(200) if "large" not in fuzz_requests.numbered_input(0, n).kind]
    found, counts, _ = attack.send_input_batch((host, int(port)), 0, numbers, 8, right)
    assert not found, "\n".join(map(str, found))
    assert sum(counts.values()) == len(numbers)
    assert len({kind for kind, _ in counts}) >= 10


def test_an_input_is_the_same_each_time():
    assert [fuzz_requests.numbered_input(3, n) for n in range(50)] == [
        fuzz_requests.numbered_input(3, n) for n in range(50)
    ]


@pytest.mark.parametrize("name", fuzz_requests.LARGE)
def test_large_requests_are_whole(name):
    """A request that is cut by mistake would be refused for that alone."""
    head, _, body = fuzz_requests.LARGE[name]().partition(b"\r\n\r\n")
    size = [x for x in head.split(b"\r\n") if x.startswith(b"Content-Length: ")]
    assert int(size[0][16:]) == len(body) if size else body.endswith(b"0\r\n\r\n")


FIELDS = ("vectors", "source", "units", "covers", "reuse", "reuse_key", "dimensions", "pool")


def test_every_way_in_is_attacked():
    """Of 4,000 inputs many hold each of these fields, in values that are right and in others, and many go to each route."""
    sent = [b"".join(fuzz_requests.numbered_input(3, number).parts) for number in range(4000)]
    for name in (*FIELDS, "/v1/embeddings", "/v1/responses", "/tokenize"):
        held = sum(name.encode() in body for body in sent)
        assert held >= 20, (name, held)


def test_faults_are_seen():
    right, said = fuzz_requests.reference_input(), json.dumps({"error": {"message": "no"}}).encode()
    text = json.dumps({"choices": [{"text": "x"}]}).encode()
    other = attack.ClientInput("fields", right.parts)
    assert attack.describe_reply_fault(other, ServerReply(400, said, 0.1), b"x") == ""
    assert attack.describe_reply_fault(right, ServerReply(200, text, 0.1), b"x") == ""
    assert attack.describe_reply_fault(other, ServerReply(503, said, 0.1), b"x") == ""
    for sent, told in (
        (right, ServerReply(200, text, 0.1)),
        (right, ServerReply(400, said, 0.1)),
        (other, ServerReply(500, said, 0.1)),
        (other, ServerReply(None, b"", 0.1)),
        (other, ServerReply(400, b"Bad Request", 0.1)),
        (other, ServerReply(400, b'{"error": {"message": "two\\nlines"}}', 0.1)),
    ):
        assert attack.describe_reply_fault(sent, told, b"y"), told


def test_late_health_counts_where_the_machine_is_quiet():
    looks = [HealthProbe(0.0, 0.3, 200, 0.5), HealthProbe(0.0, 0.1, 200, 0.0)]
    assert not attack._slow(looks, (), print)
    late = [*looks, HealthProbe(0.0, 0.3, 200, 0.01), HealthProbe(0.0, 0.1, None, 0.0)]
    assert len(attack._slow(late, (), print)) == 2


def test_what_was_under_way_is_told_with_a_late_health():
    said = list[str]()
    flights = [InputInterval("large a 7", 1.0, 2.0), InputInterval("right 8", 2.5, 2.7)]
    attack._slow([HealthProbe(1.9, 0.4, 200, 0.0, 0.1, 0.35)], flights, said.append)
    (told,) = (x for x in said if "late /health" in x)
    assert "large a 7" in told and "right 8" not in told
    assert "event loop computed 100 ms" in told and "server 350" in told


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_memory_and_time_of_processes():
    import os

    assert attack.process_tree_memory(os.getpid()) > 20 << 20 and attack._spent(os.getpid()) > 0
    assert os.getpid() in attack.process_tree(os.getpid())
    loop, whole = attack._computed(os.getpid())
    assert 0 < loop <= whole
