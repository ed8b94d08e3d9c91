"""Integer arithmetic: the same bits on every set, for any rows, threads and trees; its distance; what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from native_checkpoints import TYPES, config, weights, write_gguf

import polydec
from polydec.core.types import ScoreRequest
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.native.library import (
    COMPUTES,
    compute_of,
    native_instruction_sets,
    native_step_availability,
)
from polydec.models.native.network import CpuStep
from polydec.models.native.weights import QUANTISED
from polydec.models.nets.query import NetworkQuery

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)
BLOCKS = TYPES[3:]  # those with scales
NEAR = {"int16": 3e-4, "int8": 8e-2}  # of logits, relative rms


def feed(net, cache, tokens, parent=None):
    first = cache.end
    cache.stage_slots(range(-1, len(tokens) - 1) if parent is None else parent)
    return NetworkQuery(cache, first, tuple(tokens), range(len(tokens)), ScoreRequest())


def chain(net, tokens, step=None, cache=None):
    cache, out, step = cache or net.new_cache(), [], step or len(tokens)
    for i in range(0, len(tokens), step):
        part = tokens[i : i + step]
        out.append(net.forward([feed(net, cache, part)])[0].logits_RV)
        cache.commit_path(range(len(part)))
    return torch.cat(out), cache


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("compute", NEAR)
@pytest.mark.parametrize("kind", BLOCKS)
def test_bits_of_every_set_and_number_of_rows(kind, compute, tmp_path):
    write_gguf(tmp_path / "m.gguf", kind, seed=3)
    f, rng = GGUFCheckpoint(tmp_path / "m.gguf"), random.Random(1)
    ids = [rng.randrange(83) for _ in range(40)]
    exact, _ = chain(CpuStep.build(f.config, f), ids)
    truth = None
    for isa in native_instruction_sets():
        for threads in (1, 2) if isa == native_instruction_sets()[0] else (2,):
            net = CpuStep.build(f.config, f, threads=threads, isa=isa, compute=compute)
            for step in (1, 2, 3, 4, 5, 6, 7, 8, 33, 40) if isa != "portable" else (3, 40):
                got, _ = chain(net, ids, step)
                truth = got if truth is None else truth
                assert same(got, truth), (isa, threads, step)
    off = (truth.double() - exact).pow(2).mean().sqrt() / exact.double().pow(2).mean().sqrt()
    assert 1e-7 < off < NEAR[compute]  # another arithmetic, and a close one


@pytest.mark.parametrize("kind", BLOCKS)
def test_sixteen_bits_lie_nearer_than_eight(kind, tmp_path):
    write_gguf(tmp_path / "m.gguf", kind, seed=5)
    f, ids = GGUFCheckpoint(tmp_path / "m.gguf"), list(range(30))
    exact, fine, coarse = (
        chain(CpuStep.build(f.config, f, compute=c), ids)[0].double() for c in COMPUTES
    )
    assert (fine - exact).pow(2).mean() * 1e3 < (coarse - exact).pow(2).mean()


@pytest.mark.parametrize("compute", NEAR)
def test_trees_and_batches(compute):
    c = config("qwen3")
    w = weights(c, seed=5)
    nets = [
        CpuStep.build(c, w, threads=t, isa=i, quantize=q, compute=compute)
        for q in ("q8_0",)
        for i in native_instruction_sets()
        for t in (1, 2)
    ]
    rng = random.Random(7)
    for trial in range(12):
        queries, expected, net = [], [], rng.choice(nets)
        for _ in range(rng.randint(1, 3)):
            text, tokens = (
                [rng.randrange(83) for _ in range(n)]
                for n in (rng.randint(1, 90), rng.randint(1, 12))
            )
            parent = [rng.randint(-1, i - 1) for i in range(len(tokens))]
            _, cache = chain(nets[0], text)
            for i in range(len(tokens)):
                path, p = [], i
                while p >= 0:
                    path.append(tokens[p])
                    p = parent[p]
                expected.append(chain(nets[1], path[::-1], cache=cache.fork())[0][-1:])
            queries.append(feed(net, cache, tokens, parent))
        assert same(torch.cat([a.logits_RV for a in net.forward(queries)]), torch.cat(expected)), (
            trial
        )


@pytest.mark.parametrize("compute", NEAR)
@pytest.mark.parametrize("kind", BLOCKS)
def test_the_largest_codes_and_inputs(kind, compute, tmp_path):
    """Where sums of 16 bits would overflow if they could: all codes at an end, inputs of one size; sets must agree."""
    write_gguf(tmp_path / "m.gguf", kind, seed=1, tied=True)
    data, f = np.fromfile(tmp_path / "m.gguf", np.uint8), GGUFCheckpoint(tmp_path / "m.gguf")
    halves = {
        "Q4_1": (0, 4),
        "Q5_1": (0, 4),
        "Q4_K": (0, 4),
        "Q5_K": (0, 4),
        "Q6_K": (208, 210),
        "Q2_K": (80, 84),
        "Q3_K": (108, 110),
        "MXFP4": (0, 1),
    }.get(kind, (0, 2))
    rng = np.random.default_rng(0)
    for e in f.entries.values():
        if len(e.shape) < 2:
            continue
        size = (e.stop - e.start) // (
            e.shape[0] * e.shape[1] // (256 if kind.endswith(("K", "XS")) else 32)
        )
        blocks = data[e.start : e.stop].reshape(-1, size)
        kept = blocks[:, slice(*halves)].copy()
        blocks[:] = np.where(rng.random(len(blocks)) < 0.5, 255, 0x80 if kind == "Q8_0" else 0)[
            :, None
        ]
        blocks[:, slice(*halves)] = kept
    data.tofile(tmp_path / "m.gguf")
    f, truth = GGUFCheckpoint(tmp_path / "m.gguf"), None
    for isa in native_instruction_sets():
        got, _ = chain(CpuStep.build(f.config, f, isa=isa, compute=compute), list(range(12)))
        truth = got if truth is None else truth
        assert same(got, truth) and bool(got.isfinite().all()), isa


def test_floats_stay_floats_and_mix_with_blocks():
    c = config()
    w, ids = weights(c, seed=3), list(range(20))
    nets = [CpuStep.build(c, w, compute=x) for x in COMPUTES]
    assert all(n.kernel.endswith(" float32") and not n.approximate for n in nets)
    assert all(same(chain(n, ids)[0], chain(nets[0], ids)[0]) for n in nets)
    narrow = {**config(hidden_size=48), "hidden_size": 32, "intermediate_size": 96}
    assert CpuStep.build(narrow, weights(narrow), quantize="q8_0", compute="int16").kernel.endswith(
        " int16"
    )


@pytest.mark.parametrize("compute", NEAR)
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_infinite_activations_are_an_error(compute, number):
    c = config()
    net = CpuStep.build(c, weights(c, seed=3), quantize="q8_0", compute=compute)
    with pytest.raises(ValueError, match="NaN or infinite"):
        cache = net.new_cache()
        cache.stage_slots([-1])
        state = torch.randn(1, 64)
        state[0, 3] = number
        net.forward([NetworkQuery(cache, 0, (), range(1), ScoreRequest(), embed=state)])
    assert bool(chain(net, [1, 2, 3])[0].isfinite().all())  # and the network goes on


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_checkpoints(kind):
    c = config()
    w, ids = weights(c, seed=3), list(range(30))
    net = CpuStep.build(c, w, quantize=kind)
    exact, near = chain(CpuStep.build(c, w), ids)[0], chain(net, ids)[0]
    off = float((near - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())
    assert 1e-4 < off < {"q8_0": 0.05, "q4_1": 0.4}[kind]
    assert (
        net.approximate == f"weights quantised to {kind} when loaded" and kind.upper() in net.dtype
    )


def test_the_choice_by_argument_environment_and_set(monkeypatch):
    assert compute_of("int8", "AVX2") == "int8" and compute_of(None, "portable") == "float32"
    monkeypatch.setenv("POLYDEC_COMPUTE", "int8")
    assert compute_of(None, "AVX2") == "int8" and compute_of("float32", "AVX2") == "float32"
    monkeypatch.setenv("POLYDEC_COMPUTE", "int4")
    with pytest.raises(
        ValueError, match="POLYDEC_COMPUTE is 'int4': it must be one of float32, int16, int8"
    ):
        compute_of(None, "AVX2")
    monkeypatch.delenv("POLYDEC_COMPUTE")
    for bad in ({"compute": "int4"}, {"compute": "int8", "dtype": "float32"}):
        with pytest.raises(ValueError, match="compute is '"):
            polydec.load("zoo:tiny", **bad)
