"""MLPs of experts: each row goes through its own few, and neither the rows beside it nor threads or sets change its bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_checkpoints import config, weights

from polydec.core.types import ScoreRequest
from polydec.models.native.library import native_instruction_sets, native_step_availability
from polydec.models.native.network import CpuStep
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)
EXPERTS, USED, INNER, LAYERS = 7, 3, 64, 3
MLPS = frozenset(
    range(0, 2 * LAYERS, 2)
)  # without these halves only MLPs run: the reference needs no attention
COMPUTED = (("float32", None), ("float32", "q8_0"), ("int16", "q8_0"), ("int8", "q8_0"))


def model(shared: bool, dense=(1,), seed: int = 0):
    c = config(
        "qwen3_moe",
        num_hidden_layers=LAYERS,
        num_experts=EXPERTS,
        num_experts_per_tok=USED,
        norm_topk_prob=shared,
        moe_intermediate_size=INNER,
        mlp_only_layers=list(dense),
    )
    g, w = torch.Generator().manual_seed(seed + 100), weights({**c, "model_type": "qwen3"}, seed)
    for i in (i for i in range(LAYERS) if i not in dense):
        at = f"model.layers.{i}.mlp."
        for part in ("gate", "up", "down"):
            del w[f"{at}{part}_proj.weight"]
            n, k = (64, INNER) if part == "down" else (INNER, 64)
            for e in range(EXPERTS):
                w[f"{at}experts.{e}.{part}_proj.weight"] = torch.randn(n, k, generator=g) / k**0.5
        w[at + "gate.weight"] = torch.randn(EXPERTS, 64, generator=g) / 4
    return c, w


def queries(net, rows, alone=False, without=MLPS, routing=None):
    """Logits of states, all in one pass or each in a pass of its own."""
    out, want = [], ScoreRequest(routing=routing)
    for some in rows.split(1) if alone else [rows]:
        cache = net.new_cache()
        cache.stage_slots(range(-1, len(some) - 1))
        out += net.forward(
            [NetworkQuery(cache, 0, (), range(len(some)), want, embed=some, without=without)]
        )
    return torch.cat([a.logits_RV for a in out])


def reference(w, rows, shared, dense=(1,), routing=None):
    """The same in float64, row by row, expert by expert. routing: what moves the router, in standard deviations."""
    w = {k: t.double().numpy() for k, t in w.items()}

    def normed(x, name):
        return x / np.sqrt((x * x).mean() + 1e-5) * w[f"model.{name}.weight"]

    def mlp(x, at):
        gate, up = w[at + "gate_proj.weight"] @ x, w[at + "up_proj.weight"] @ x
        return w[at + "down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)

    out = []
    for x in rows.double().numpy():
        for i in range(LAYERS):
            y, at = normed(x, f"layers.{i}.post_attention_layernorm"), f"model.layers.{i}.mlp."
            if i in dense:
                x = x + mlp(y, at)
                continue
            scores = w[at + "gate.weight"] @ y
            if routing is not None:
                scores = scores + np.array(routing[i]) * scores.std()
            chance = np.exp(scores - scores.max())
            best = np.argsort(-chance, kind="stable")[:USED]
            chance = chance / (chance[best].sum() if shared else chance.sum())
            x = x + sum(chance[e] * mlp(y, f"{at}experts.{e}.") for e in best)
        out.append(w["lm_head.weight"] @ normed(x, "norm"))
    return torch.tensor(np.array(out))


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def states(n, seed=1):
    return torch.randn(n, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dense", [(), (1,), (0, 2)])
def test_a_plain_reference(shared, dense):
    c, w = model(shared, dense)
    rows = states(40)
    want = reference(w, rows, shared, dense)
    got = queries(CpuStep.build(c, w, threads=2), rows).double()
    assert (got - want).abs().max() < 1e-5 * want.abs().max() and want.std() > 0.3


NETWORKS = {
    "step": lambda c, w: CpuStep.build(c, w, threads=2),
    "torch": lambda c, w: LlamaTransformer.build(c, w, dtype="float64"),
}


def moved(seed, scale):
    noise = np.random.default_rng(seed).gumbel(size=(LAYERS, EXPERTS)) * scale
    return tuple(map(tuple, noise.tolist()))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_router_is_moved_by_deviations_of_a_rows_own_scores(kind, shared):
    c, w = model(shared)
    net, rows = NETWORKS[kind](c, w), states(40)
    for seed, scale in ((1, 0.3), (2, 3.0)):
        routing = moved(seed, scale)
        want = reference(w, rows, shared, (1,), routing)
        got = queries(net, rows, routing=routing).double()
        assert (got - want).abs().max() < 1e-5 * want.abs().max()
        assert (want - reference(w, rows, shared)).abs().max() > 0.1
    still = tuple((0.0,) * EXPERTS for _ in range(LAYERS))
    assert torch.equal(queries(net, rows, routing=still), queries(net, rows))


@pytest.mark.parametrize("kind", NETWORKS)
def test_only_rows_that_are_answered_are_moved_and_others_in_the_pass_are_not(kind):
    c, w = model(True)
    net, rows, routing = NETWORKS[kind](c, w), states(12), moved(3, 2.0)
    asks = []
    for some, answered, by in (
        (rows[:5], range(3, 5), routing),
        (rows[5:9], range(4), None),
        (rows[9:], range(3), moved(4, 2.0)),
    ):
        cache = net.new_cache()
        cache.stage_slots(range(-1, len(some) - 1))
        asks.append(
            NetworkQuery(
                cache, 0, (), answered, ScoreRequest(routing=by), embed=some, without=frozenset()
            )
        )
    together = [a.logits_RV for a in net.forward(asks)]
    for q in asks:
        q.cache.commit_path(())
        q.cache.stage_slots(range(-1, len(q) - 1))
    alone = [net.forward([q])[0].logits_RV for q in asks]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(together, alone, strict=True))
    # rows that are not answered leave the entries that they leave anyway
    entries = asks[0].cache.all_entries()[..., :3, :].clone()
    cache = net.new_cache()
    cache.stage_slots(range(-1, 4))
    net.forward(
        [NetworkQuery(cache, 0, (), range(5), ScoreRequest(), embed=rows[:5], without=frozenset())]
    )
    assert torch.allclose(entries, cache.all_entries()[..., :3, :], atol=1e-6)
    assert not torch.allclose(asks[0].cache.all_entries(), cache.all_entries(), atol=1e-3)


@pytest.mark.parametrize("compute, quantize", COMPUTED)
def test_rows_know_neither_their_neighbours_nor_threads_nor_sets(compute, quantize):
    c, w = model(shared=True)
    rows = states(33)
    truth = queries(
        CpuStep.build(c, w, threads=1, compute=compute, quantize=quantize), rows, alone=True
    )
    for isa in native_instruction_sets():
        for threads in (1, 2, 5):
            net = CpuStep.build(c, w, threads=threads, isa=isa, compute=compute, quantize=quantize)
            for order in (
                torch.arange(33),
                torch.randperm(33, generator=torch.Generator().manual_seed(threads)),
            ):
                for some in order.split(33 if isa == "portable" else 7 + 13 * (threads > 1)):
                    assert same(queries(net, rows[some]), truth[some]), (isa, threads)


@pytest.mark.parametrize("compute, quantize", COMPUTED)
def test_with_attention_a_whole_text_equals_its_steps(compute, quantize):
    c, w = model(shared=False)
    net, ids = (
        CpuStep.build(c, w, threads=3, compute=compute, quantize=quantize),
        [i * 5 % 83 for i in range(30)],
    )
    answers = []
    for step in (30, 1, 4):
        cache, out = net.new_cache(), []
        for i in range(0, 30, step):
            part = tuple(ids[i : i + step])
            first = cache.stage_slots(range(-1, len(part) - 1))
            out += net.forward([NetworkQuery(cache, first, part, range(len(part)), ScoreRequest())])
            cache.commit_path(range(len(part)))
        answers.append(torch.cat([a.logits_RV for a in out]))
    assert same(answers[0], answers[1]) and same(answers[0], answers[2])


def test_all_rows_through_the_same_experts_and_experts_without_rows():
    c, w = model(shared=True, dense=())
    for i in range(LAYERS):
        router = w[f"model.layers.{i}.mlp.gate.weight"]
        router.copy_(
            torch.linspace(1, 0, EXPERTS)[:, None] * router[:1]
        )  # the first three, or the last three
    rows = states(24)
    got = queries(CpuStep.build(c, w, threads=2), rows)
    assert (got.double() - reference(w, rows, True, ())).abs().max() < 1e-4
    assert same(got, queries(CpuStep.build(c, w, threads=1), rows, alone=True))


def test_of_equal_scores_the_first_experts_are_taken():
    c, w = model(shared=True, dense=())
    for i in range(LAYERS):
        w[f"model.layers.{i}.mlp.gate.weight"].zero_()
    rows = states(9)
    assert (
        queries(CpuStep.build(c, w, threads=2), rows).double() - reference(w, rows, True, ())
    ).abs().max() < 1e-4


def test_a_row_of_nan_is_an_error_and_leaves_no_trace():
    c, w = model(shared=True)
    net, rows = CpuStep.build(c, w, threads=2), states(5)
    truth, broken = queries(net, rows), rows.clone()
    broken[2, 3] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite"):
        queries(net, broken)
    assert same(queries(net, rows), truth)


def test_the_library_checks_which_layers_are_experts():
    c, w = model(shared=True)
    net = CpuStep.build(c, w, threads=1)
    dense = CpuStep.build(config("qwen3"), weights(config("qwen3")), threads=1)

    def told(to, *values, count=None):
        return to._lib.step_sparse(
            to._model,
            np.array(values, np.int32).ctypes.data,
            len(values) if count is None else count,
        )

    assert told(net, 1, 0) == told(net, 1, 0, 1, 1) == told(net, 1, 0, 1, count=1 << 40) == 3
    assert net._lib.step_sparse(net._model, None, LAYERS) == 3
    assert told(net, 1, 0, 2) == told(net, 1, -1, 1) == 2
    assert told(dense, 0, 1) == 2 and told(dense, 0, 0) == 0
    assert told(net, 1, 1, 1) == 0  # the second has no experts' weights
    with pytest.raises(ValueError, match="weights are missing"):
        queries(net, states(2))
