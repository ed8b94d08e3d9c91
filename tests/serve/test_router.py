"""Which replica answers: shared beginnings draw requests together, load drives them apart."""

import random

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
from polydec.serve.router import (
    BLOCK,
    KEPT,
    SLACK,
    ReplicaRouter,
    prefix_block_hashes,
    prompt_beginning,
)


def test_blocks_stand_for_all_before_them():
    a, b = (
        prefix_block_hashes("x" * BLOCK + "a" * BLOCK),
        prefix_block_hashes("x" * BLOCK + "b" * BLOCK),
    )
    assert a[0] == b[0] and a[1] != b[1] and len(a) == 2
    assert prefix_block_hashes("y" * BLOCK + "a" * BLOCK)[1] != a[1], (
        "a block names its own text alone"
    )
    assert prefix_block_hashes("x" * (BLOCK - 1)) == [] and prefix_block_hashes(
        "x" * (2 * BLOCK + 5)
    ) == prefix_block_hashes("x" * 2 * BLOCK)
    assert prefix_block_hashes(list(range(BLOCK))) != prefix_block_hashes(list(range(1, BLOCK + 1)))


@pytest.mark.parametrize(
    "body, want",
    [
        ({"prompt": "abc"}, "abc"),
        ({"prompt": ["abc", "d"]}, "abc"),
        ({"prompt": [[1, 2], [3]]}, [1, 2]),
        ({"prompt": [1]}, [1]),
        ({}, "[]"),
        ({"prompt": None}, "[]"),
        ({"prompt": []}, []),
        ({"messages": [{"role": "user"}], "tools": [1]}, '[[1], [{"role": "user"}]]'),
    ],
)
def test_beginnings(body, want):
    assert prompt_beginning(body) == want


def test_a_shared_beginning_goes_where_it_was_read():
    router, rng = ReplicaRouter(3), random.Random(1)
    texts = [prefix_block_hashes("".join(rng.choices("abcdef", k=20 * BLOCK))) for _ in range(9)]
    first = {}
    for n, text in enumerate(texts):
        first[n] = router.choose_replica(text, {0, 1, 2})
        router.note_sent(first[n], text)
    assert set(first.values()) == {0, 1, 2}, "prompts that share nothing are spread"
    for n, text in enumerate(texts):
        assert router.choose_replica(text[:5], {0, 1, 2}) == first[n]
        assert router.shared_blocks(first[n], text) == len(text)
    router.forget_replica(first[0])
    assert all(router.shared_blocks(first[0], text) == 0 for text in texts)


def test_load_drives_apart():
    router, text = ReplicaRouter(2), prefix_block_hashes("z" * 10 * BLOCK)
    router.note_sent(0, text)
    for busy in range(SLACK + 3):
        router.busy = [busy, 0]
        assert router.choose_replica(text, {0, 1}) == (0 if busy <= SLACK else 1)
    assert router.choose_replica(text, {0}) == 0 and router.choose_replica(text, set()) is None
    router.busy = [1, 0]
    assert router.choose_replica([], {0, 1}) == 1, "without a prefix the least busy one"


def test_what_is_remembered_is_bounded():
    router = ReplicaRouter(1)
    for i in range(KEPT // 100 + 50):
        router.note_sent(0, [bytes([i % 256, i // 256]) + bytes([j]) for j in range(100)])
    assert len(router._known[0]) == KEPT
