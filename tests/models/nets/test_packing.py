"""One pass over many queries: every answer is the one the query gets alone, to the bit in float32."""

import pytest
import torch
from test_kv_cache import network

from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.nets import masks
from polydec.models.nets.linear import ONEDNN32, has_bf16
from polydec.models.nets.packing import group_into_passes
from polydec.models.nets.query import NetworkQuery

ROW = ScoreRequest()
NET = network(num_hidden_layers=3)
WIDE = network(
    1, hidden_size=192, intermediate_size=1600, num_attention_heads=6, num_key_value_heads=2
)


def draw(seed, n):
    return torch.randint(0, 50, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def job(net, seed, length, parent, rows=None, want=ROW):
    """A query over a committed text of this length with a staged tree."""
    cache, text = net.new_cache(), draw(seed, length)
    if length:
        cache.stage_slots(range(-1, length - 1))
        cache.commit_path(range(length))
        net.forward([NetworkQuery(cache, 0, tuple(text), (), want)])
    tokens = draw(seed + 1000, len(parent))
    return NetworkQuery(
        cache,
        cache.stage_slots(parent),
        tuple(tokens),
        range(len(parent)) if rows is None else rows,
        want,
    )


JOBS = [
    (0, (-1,)),
    (5, (-1,)),
    (5, (-1, 0, 1)),
    (17, (-1, 0, 0, 1, 1)),
    (40, tuple(range(-1, 49))),
    (3, (-1, 0, 0)),
    (17, (-1,)),
    (40, (-1,)),
    (5, (-1,)),
    (60, tuple(range(-1, 199))),
]


def equal(a, b):
    assert a.shape == b.shape and torch.equal(a, b), (a - b).abs().max()


def test_a_batch_equals_its_singles_to_the_bit():
    for net in (NET, WIDE):
        alone = [net.forward([job(net, s, n, p)])[0].logits_RV for s, (n, p) in enumerate(JOBS)]
        for order in (list(range(len(JOBS))), [7, 2, 9, 0, 1, 8, 3, 6, 4, 5], [1, 8], [0, 6, 7, 1]):
            together = net.forward([job(net, s, *JOBS[s]) for s in order])
            for s, a in zip(order, together):
                equal(a.logits_RV, alone[s])


def test_what_a_batch_caches_equals_singles_too():
    queries = [job(NET, s, n, p) for s, (n, p) in enumerate(JOBS)]
    NET.forward(queries)
    for s, q in enumerate(queries):
        again = job(NET, s, *JOBS[s])
        NET.forward([again])
        equal(q.cache.kv[..., : q.cache.end, :], again.cache.kv[..., : again.cache.end, :])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tree_gives_the_rows_of_plain_decoding_to_the_bit(dtype):
    if dtype == "bfloat16" and not has_bf16():
        pytest.skip("this CPU has no bfloat16 arithmetic")
    net, text, new = network(3, dtype), draw(0, 30), draw(1, 12)
    plain, tree = net.new_cache(), net.new_cache()
    for cache in (plain, tree):
        cache.stage_slots(range(-1, 29))
        cache.commit_path(range(30))
        net.forward([NetworkQuery(cache, 0, tuple(text), (), ROW)])
    for at in range(0, 12, 3):  # three tokens a pass, each with a sibling that is dropped
        tokens, first = (
            [x for t in new[at : at + 3] for x in (7, t)],
            tree.stage_slots([-1, -1, 1, 1, 3, 3]),
        )
        rows = net.forward([NetworkQuery(tree, first, tuple(tokens), range(6), ROW)])[0].logits_RV
        tree.commit_path([1, 3, 5])
        for i, x in enumerate(new[at : at + 3]):
            first = plain.stage_slots([-1])
            plain.commit_path([0])
            equal(
                net.forward([NetworkQuery(plain, first, (x,), (0,), ROW)])[0].logits_RV[0],
                rows[2 * i + 1],
            )
    equal(plain.kv[..., :42, :], tree.kv[..., :42, :])


def test_layers_rows_and_wants_may_differ_within_a_merge():
    whole = NET.forward([job(NET, 3, 9, (-1, 0, 1, 1))])[0].logits_RV
    low, part = job(NET, 3, 9, (-1, 0, 1, 1)), range(0, 2)
    low = NetworkQuery(
        low.cache,
        low.first,
        low.token,
        (1, 3),
        ScoreRequest(law=RowDetail.NOTHING, hidden=True),
        None,
        part,
    )
    got = NET.forward(
        [
            low,
            job(NET, 3, 9, (-1, 0, 1, 1), rows=[3]),
            job(NET, 3, 9, (-1, 0, 1, 1), rows=()),
            job(NET, 3, 9, (-1, 0, 1, 1), rows=[0, 2], want=ScoreRequest(hidden=True)),
        ]
    )
    assert got[0].logits_RV is None and got[0].hidden_RH.shape == (2, 32)
    equal(got[1].logits_RV, whole[3:])
    assert got[2].logits_RV is None and got[1].hidden_RH is None
    equal(got[3].logits_RV, whole[[0, 2]])
    assert got[3].hidden_RH.shape == (2, 32)
    alone = NET.forward(
        [
            NetworkQuery(
                job(NET, 3, 9, (-1, 0, 1, 1)).cache, 9, low.token, (1, 3), low.want, None, part
            )
        ]
    )
    equal(got[0].hidden_RH, alone[0].hidden_RH)


def test_large_merges_are_split():
    queries = [
        job(NET, s, 0, tuple(range(-1, n - 1))) for s, n in enumerate((200, 300, 100, 500, 10, 10))
    ]
    run = (0, 1, 2), frozenset(), 1
    assert list(group_into_passes(queries, 3, 512)) == [
        (run, [0, 1]),
        (run, [2]),
        (run, [3, 4]),
        (run, [5]),
    ]
    assert [i for _, index in group_into_passes(queries, 3, 64) for i in index] == list(range(6))


def test_rows_of_the_exact_kernel_do_not_depend_on_their_number():
    g = torch.Generator().manual_seed(0)
    for out, into in ((96, 64), (576, 1536), (33, 7), (3072, 576)):
        linear = ONEDNN32.pack(torch.randn(out, into, generator=g), torch.randn(out, generator=g))
        x = torch.randn(40, into, generator=g)
        with torch.inference_mode():
            whole = linear(x)
            for m in range(1, 32):
                equal(linear(x[:m]), whole[:m])
                equal(linear(x[5 : 5 + m]), whole[5 : 5 + m])


def test_masks():
    def seen(first, stop, length, parent):
        return (
            (
                masks.tree_attention_mask(
                    first, stop, length, parent, torch.float32, torch.device("cpu")
                )
                == 0
            )
            .int()
            .tolist()
        )

    assert seen(2, 4, 4, ()) == [[1, 0], [1, 1]]  # committed
    assert seen(3, 6, 3, (-1, 0, 1)) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]  # a staged chain
    assert seen(3, 6, 3, (-1, 0, 0)) == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]  # a fork
    assert seen(2, 5, 3, (-1, -1)) == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 0, 1],
    ]  # a tail and two first nodes
    assert seen(5, 6, 3, (-1, 0, 0)) == [[1, 0, 1]]  # more of a staged tree
    assert masks.staged_entry_depths((-1, 0, 0, 2, -1)) == [0, 1, 1, 2, 0]
