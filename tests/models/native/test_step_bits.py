"""The promise of the native step: a row's bits depend on nothing but the row."""

from __future__ import annotations

import random

import pytest
import torch
from native_checkpoints import TYPES, config, weights, write_gguf

from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.native.library import native_instruction_sets, native_step_availability
from polydec.models.native.network import CpuStep
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.scores import LogitScores

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)


def feed(net, cache, tokens, parent=None, rows=None, want=None, **more):
    """Stage a tree (by default a chain) and answer its rows."""
    first = cache.end
    cache.stage_slots(range(-1, len(tokens) - 1) if parent is None else parent)
    return NetworkQuery(
        cache,
        first,
        tuple(tokens),
        range(len(tokens)) if rows is None else rows,
        want or ScoreRequest(),
        **more,
    )


def chain(net, tokens, step=None, cache=None):
    """Logits of every token, `step` of them a call, all committed; the cache."""
    cache, out, step = cache or net.new_cache(), [], step or len(tokens)
    for i in range(0, len(tokens), step):
        part = tokens[i : i + step]
        out.append(net.forward([feed(net, cache, part)])[0].logits_RV)
        cache.commit_path(range(len(part)))
    return torch.cat(out), cache


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("kind", TYPES)
def test_every_set_thread_count_and_number_of_rows(kind, tmp_path):
    write_gguf(tmp_path / "m.gguf", kind, seed=3)
    f = GGUFCheckpoint(tmp_path / "m.gguf")
    rng = random.Random(1)
    ids = [rng.randrange(83) for _ in range(42)]
    truth = kv = None
    for isa in native_instruction_sets():
        for threads in (1, 2) if isa == native_instruction_sets()[0] else (2,):
            net = CpuStep.build(f.config, f, threads=threads, isa=isa)
            for step in (1, 2, 3, 4, 5, 6, 7, 8, 33, 42) if isa != "portable" else (3, 42):
                got, cache = chain(net, ids, step)
                if truth is None:
                    truth, kv = got, cache.kv[..., :42, :]
                assert same(got, truth), (isa, threads, step)
                assert same(cache.kv[..., :42, :], kv), (isa, threads, step)


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 9}),
        ("llama", {"partial_rotary_factor": 0.5}),
    ],
)
def test_trees_batches_and_layouts(kind, changes):
    c = config(kind, **changes)
    w = weights(c, seed=5)
    nets = [
        CpuStep.build(c, w, threads=t, isa=i) for i in native_instruction_sets() for t in (1, 2)
    ]
    rng = random.Random(7)
    for trial in range(25):
        queries, expected = [], []
        net = rng.choice(nets)
        for _ in range(rng.randint(1, 4)):  # sequences of unequal length, each with a tree
            text = [rng.randrange(83) for _ in range(rng.randint(1, 90))]
            tokens = [rng.randrange(83) for _ in range(rng.randint(1, 14))]
            parent = [rng.randint(-1, i - 1) for i in range(len(tokens))]
            _, cache = chain(nets[0], text)
            for i in range(len(tokens)):
                path, p = [], i
                while p >= 0:
                    path.append(tokens[p])
                    p = parent[p]
                expected.append(chain(nets[1], path[::-1], cache=cache.fork())[0][-1:])
            split = rng.randint(0, len(tokens))  # a tree may come in two pieces
            if split:
                net.forward([feed(net, cache, tokens[:split], parent[:split], rows=())])
            if split < len(tokens):
                queries.append(feed(net, cache, tokens[split:], parent[split:]))
            del expected[len(expected) - len(tokens) : len(expected) - len(tokens) + split]
        if queries:
            assert same(
                torch.cat([a.logits_RV for a in net.forward(queries)]), torch.cat(expected)
            ), trial


def test_halves_that_do_not_run():
    """Any set, threads and number of rows: the bits of a network in which these halves add nothing; what they would cache is
    not written."""
    c = config(num_hidden_layers=4)
    w, ids = weights(c, seed=9), [i * 7 % 83 for i in range(60)]
    for layers, without in (
        ((0, 1, 2, 3), {2, 5}),
        ((0, 2, 3), {0, 7}),
        ((1,), {2}),
        ((0, 3), {1, 6}),
        ((1, 2), {3, 5}),
        ((0, 1, 2, 3), {0, 2, 4, 6}),
    ):
        idle = {
            **w,
            **{
                f"model.layers.{i}.{name}.weight": torch.zeros_like(
                    w[f"model.layers.{i}.{name}.weight"]
                )
                for i in range(4)
                for h, name in enumerate(("self_attn.o_proj", "mlp.down_proj"))
                if i not in layers or 2 * i + h in without
            },
        }
        truth, _ = chain(CpuStep.build(c, idle), ids)
        for isa in native_instruction_sets():
            for threads in (1, 2, 3) if isa == native_instruction_sets()[0] else (3,):
                net = CpuStep.build(c, w, threads=threads, isa=isa)
                for step in (1, 3, 8, 60) if isa == native_instruction_sets()[0] else (60,):
                    cache, out = net.new_cache(), []
                    cache.kv.fill_(7.0)
                    for i in range(0, 60, step):
                        some = ids[i : i + step]
                        out += net.forward(
                            [feed(net, cache, some, layers=layers, without=frozenset(without))]
                        )
                        cache.commit_path(range(len(some)))
                    assert same(torch.cat([a.logits_RV for a in out]), truth), (isa, threads, step)
                    for i in range(4):
                        kept = i not in layers or 2 * i in without
                        assert bool((cache.kv[i, :, :, :60] == 7.0).all()) == kept


def test_commit_equals_prefill():
    c = config("qwen3")
    net = CpuStep.build(c, weights(c), threads=2)
    _, cache = chain(net, [1, 2, 3, 4, 5])
    net.forward([feed(net, cache, [6, 7, 8, 9, 10], [-1, 0, 0, 2, 1])])
    cache.commit_path([0, 2, 3])  # 6, 8, 9
    after, _ = chain(net, [11], cache=cache)
    whole, fresh = chain(net, [1, 2, 3, 4, 5, 6, 8, 9, 11])
    assert same(after, whole[-1:])
    assert same(cache.kv[..., :9, :], fresh.kv[..., :9, :])


def test_argmax_without_rows_and_rows_after_all():
    c = config()
    net = CpuStep.build(c, weights(c), threads=2)
    ids = list(range(40))
    truth, _ = chain(net, ids)
    (a,) = net.forward([feed(net, net.new_cache(), ids, want=ScoreRequest(law=RowDetail.ARGMAX))])
    assert a.logits_RV is None and list(a.argmax) == truth.argmax(-1).tolist()
    assert same(a.later(), truth)
    queries = [
        feed(net, net.new_cache(), ids, want=ScoreRequest(law=law))
        for law in (RowDetail.ARGMAX, RowDetail.ROW, RowDetail.NOTHING)
    ]
    one, two, three = net.forward(queries)
    assert (
        one.logits_RV is None
        and same(two.logits_RV, truth)
        and three.logits_RV is three.argmax is three.later is None
    )
    assert one.argmax == two.argmax


@pytest.mark.parametrize("window", [None, 60])
def test_branches_that_reach_over_a_block(window):
    """Attention goes by blocks of 128 positions: rows that stand side by side see one of them through different branches,
    or from different places on."""
    c = config("mistral", sliding_window=window)
    w, rng = weights(c, seed=5), random.Random(3)
    nets = [CpuStep.build(c, w, threads=t) for t in (1, 2)]
    for text, trunk, arms in ((100, 20, 24), (125, 0, 12), (120, 5, 12)):
        parent = list(range(-1, trunk - 1))
        tips = [trunk - 1] * 4
        for _ in range(arms):  # four branches that grow side by side
            for k in range(4):
                parent.append(tips[k])
                tips[k] = len(parent) - 1
        tokens = [rng.randrange(83) for _ in parent]
        _, cache = chain(nets[0], [rng.randrange(83) for _ in range(text)])
        expected = {}
        for i in range(len(parent) - 4, len(parent)):
            path, p = [], i
            while p >= 0:
                path.append(p)
                p = parent[p]
            rows, _ = chain(nets[1], [tokens[j] for j in path[::-1]], cache=cache.fork())
            expected |= dict(zip(path[::-1], rows))
        got = nets[0].forward([feed(nets[0], cache, tokens, parent)])[0].logits_RV
        assert same(got, torch.stack([expected[i] for i in range(len(parent))]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_of_equal_scores_the_first_token_is_the_likeliest(threads):
    """Within 16 outputs that are worked out together, among those of one thread, and among those of several."""
    c = config()
    w, ids = weights(c), list(range(40))
    head = w["lm_head.weight"]
    head[1:48:2] = head[:47:2]  # the same scores in the next place
    head[48:] = head[:35]  # and in another panel
    net = CpuStep.build(c, w, threads=threads)
    for rows in (1, 40):
        queries = [
            feed(net, net.new_cache(), ids[:rows], want=ScoreRequest(law=law))
            for law in (RowDetail.ARGMAX, RowDetail.ROW)
        ]
        found, law = net.forward(queries)
        for best, row in zip(found.argmax, law.logits_RV.tolist()):
            assert row.count(max(row)) >= 2 and best == row.index(max(row))


def test_layer_ranges_meet_in_the_middle():
    c = config("qwen2")
    net = CpuStep.build(c, weights(c), threads=2)
    ids = [3, 1, 4, 1, 5, 9]
    truth, kv = chain(net, ids)
    cache = net.new_cache()
    (low,) = net.forward(
        [feed(net, cache, ids, want=ScoreRequest(law=RowDetail.NOTHING, hidden=True), layers=(0,))]
    )
    (high,) = net.forward(
        [NetworkQuery(cache, 0, (), range(6), ScoreRequest(), embed=low.hidden_RH, layers=(1,))]
    )
    assert low.logits_RV is None and same(high.logits_RV, truth)
    assert same(cache.kv[..., :6, :], kv.kv[..., :6, :])


def test_likeliest_tokens_of_rows():
    c = config()
    net = CpuStep.build(c, weights(c), threads=2)
    (a,) = net.forward(
        [
            feed(
                net,
                net.new_cache(),
                list(range(30)),
                want=ScoreRequest(law=RowDetail.NOTHING, base=RowDetail.TOPK),
            )
        ]
    )
    for k in (1, 8, 83, 100):
        assert (
            LogitScores([a]).topk_rows(range(30), k)
            == a.logits_RV.topk(min(k, 83), -1).indices.tolist()
        )
    ties = torch.tensor(
        [[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, float("-inf"), 0.0, float("-inf"), float("-inf")]]
    )
    assert net.top_tokens(ties, 4) == [[1, 2, 4, 3], [0, 2, 1, 3]]
