"""Keys and values of 16 or 8 bits: what is kept, that bits still depend on nothing but the row, how far the law moves."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from native_checkpoints import config, weights
from test_step_bits import chain, feed, same

import polydec
from polydec.models.native.library import (
    CACHES,
    cache_dtype_of,
    native_instruction_sets,
    native_step_availability,
)
from polydec.models.native.network import CpuStep

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)

NARROW = [name for name in CACHES if name != "float32"]


def kept(cache, count):
    """Bytes of the first entries."""
    return cache.all_entries()[..., :count, :].contiguous().view(torch.uint8)


@pytest.mark.parametrize("cache_dtype", NARROW)
def test_every_set_thread_count_and_number_of_rows(cache_dtype):
    c, rng = config(), random.Random(1)
    w, ids = (
        weights(c, seed=3),
        [rng.randrange(83) for _ in range(300)],
    )  # three blocks of attention
    truth = first = None
    for isa in native_instruction_sets():
        for threads in (1, 2) if isa == native_instruction_sets()[0] else (2,):
            net = CpuStep.build(c, w, threads=threads, isa=isa, cache_dtype=cache_dtype)
            for step in (1, 3, 5, 8, 33, 300) if isa != "portable" else (7, 300):
                got, cache = chain(net, ids, step)
                if truth is None or first is None:
                    truth, first = got, kept(cache, 300)
                assert same(got, truth), (isa, threads, step)
                assert torch.equal(kept(cache, 300), first), (isa, threads, step)


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize(
    "kind, changes", [("llama", {}), ("qwen3", {}), ("mistral", {"sliding_window": 140})]
)
def test_trees_batches_and_forks(kind, changes, cache_dtype):
    """Sequences of unequal length over shared prefixes of up to three blocks, each with a tree."""
    c = config(kind, **changes)
    w, rng = weights(c, seed=5), random.Random(7)
    nets = [
        CpuStep.build(c, w, threads=t, isa=i, cache_dtype=cache_dtype)
        for i in native_instruction_sets()
        for t in (1, 2)
    ]
    _, trunk = chain(nets[0], [rng.randrange(83) for _ in range(290)])
    for trial in range(12):
        queries, expected = [], []
        for _ in range(rng.randint(1, 4)):
            # anywhere, or so that what is their own begins at the end of a block of 128
            near = 128 * rng.randint(1, 2) - rng.randint(1, 4)
            cache = trunk.fork(rng.choice((rng.randint(1, 290), near)))
            chain(nets[0], [rng.randrange(83) for _ in range(rng.randint(1, 9))], cache=cache)
            tokens = [rng.randrange(83) for _ in range(rng.randint(1, 14))]
            parent = [rng.randint(-1, i - 1) for i in range(len(tokens))]
            for i in range(len(tokens)):
                path, p = [], i
                while p >= 0:
                    path.append(tokens[p])
                    p = parent[p]
                expected.append(chain(nets[1], path[::-1], step=1, cache=cache.fork())[0][-1:])
            queries.append(feed(nets[0], cache, tokens, parent))
        answers = rng.choice(nets).forward(queries)
        assert same(torch.cat([a.logits_RV for a in answers]), torch.cat(expected)), trial


def test_what_is_kept():
    """The numbers of a float32 cache, rounded: 16 bits as torch rounds them, down to the smallest; 8 bits to 127 parts of the
    largest of a head."""
    c = config()
    for size in (1.0, 1e-5, 1e-7):
        w = {
            k: x * size if "k_proj" in k or "v_proj" in k else x
            for k, x in weights(c, seed=3).items()
        }
        ids = list(range(40))
        wide, half, byte = (
            chain(CpuStep.build(c, w, cache_dtype=x), ids)[1].all_entries()[0, ..., :40, :]
            for x in CACHES
        )
        assert half.dtype == torch.float16 and byte.dtype == torch.int8
        assert torch.equal(half, wide.half())
        scale = byte[..., -4:].contiguous().view(torch.float32)
        most = wide.abs().amax(-1, keepdim=True)
        assert torch.equal(scale, most / 127)
        inverse = np.float32(127) / most.numpy()
        assert np.array_equal(
            byte[..., :-4].numpy(), np.rint(wide.numpy() * inverse).astype(np.int8)
        )


def held(values, cache_dtype="float16"):
    """What is kept of these values: a network whose values are its biases, whatever the text."""
    c = config("qwen2")
    w, name = weights(c), "model.layers.{}.self_attn.v_proj."
    some = torch.zeros(64)
    some[: len(values)] = torch.tensor(values)
    for i in range(2):
        w[name.format(i) + "weight"], w[name.format(i) + "bias"] = torch.zeros(64, 64), some
    _, cache = chain(CpuStep.build(c, w, cache_dtype=cache_dtype), [1, 2, 3])
    return cache.all_entries()[0, 1, :, :3], some


def test_what_lies_between_two_numbers_and_beyond_the_largest():
    """Numbers of 16 bits: of two that are as near the even one, down to the smallest; what would round to infinity is an
    error, and what rounds to the largest is not."""
    between = [(2 * n + 1) * 2.0**-k for n in (512, 513, 1022, 1023) for k in (3, 11, 24)]
    tiny = [(2 * n + 1) * 2.0**-25 for n in (0, 1, 2, 3, 510, 511, 512, 1023)]
    values = [sign * x for x in (*between, *tiny, 65504.0, 65519.99, 65488.0) for sign in (1, -1)]
    got, want = held(values)
    assert torch.equal(got, want.half().view(2, 1, 32).expand(2, 3, 32))
    for large in (65520.0, 65527.0, 65535.99, 1e5):
        for value in (large, -large):
            with pytest.raises(ValueError, match="NaN or infinite"):
                held([1.0, value])
            assert held([1.0, value], "float32")[0][0, 0, 1] == value


def test_a_key_that_does_not_fit_is_an_error_at_the_position_where_it_does_not():
    """Keys are turned by their positions, and of 8 positions only the last one's would round to infinity: a query that looks
    away from it must not pass it over in silence."""
    c = config("qwen2")
    for at, fits in ((7, 65519.0), (7, 65525.0)):
        w = weights(c)
        for part in "qk":
            w[f"model.layers.0.self_attn.{part}_proj.weight"].zero_()
            w[f"model.layers.0.self_attn.{part}_proj.bias"].zero_()
        key = w["model.layers.0.self_attn.k_proj.bias"].view(2, 32)
        key[:, [0, 16]] = fits / (np.cos(at) + np.sin(at))  # its second half is largest at 7
        w["model.layers.0.self_attn.q_proj.bias"].view(4, 32)[:, 16] = -1.0
        net = CpuStep.build(c, w, cache_dtype="float16")
        _, cache = chain(net, list(range(at)))
        if fits < 65520:
            assert bool(chain(net, [at], cache=cache)[0].isfinite().all())
            continue
        with pytest.raises(ValueError, match="NaN or infinite"):
            chain(net, [at], cache=cache)


@pytest.mark.parametrize("cache_dtype", CACHES)
def test_texts_that_grew_from_one_another(cache_dtype):
    """Each is a fork of the one before at some place, also when those have given their own entries back."""
    c, rng = config(max_position_embeddings=1024), random.Random(4)
    net = CpuStep.build(c, weights(c, seed=5), threads=2, cache_dtype=cache_dtype)
    text = [rng.randrange(83) for _ in range(290)]
    _, cache = chain(net, text)
    family = [cache]
    for stop in (200, 260, 300, 390, 135):
        text = [*text[:stop], *(rng.randrange(83) for _ in range(150))]
        family.append(family[-1].fork(stop))
        got, cache = chain(net, text[stop:], cache=family[-1])
        want, fresh = chain(net, text)
        assert same(got, want[stop:]) and torch.equal(
            kept(cache, len(text)), kept(fresh, len(text))
        )
        if len(family) % 2:
            family[-2].truncate_entries(0)
    assert max(len(one.shared) for one in family) >= 3


def test_distance_and_memory():
    c = config()
    w, ids = weights(c, seed=3), [i * 7 % 83 for i in range(200)]
    (exact, wide), (near, half), (far, byte) = (
        chain(CpuStep.build(c, w, cache_dtype=x), ids) for x in CACHES
    )

    def off(got):
        return float((got - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())

    assert 0 < off(near) < 1e-3 and off(near) < off(far) < 0.05
    head = wide.kv.shape[-1]
    assert wide.nbytes == 2 * half.nbytes and byte.nbytes * 4 * head == wide.nbytes * (head + 4)


@pytest.mark.parametrize("cache_dtype", CACHES)
def test_numbers_that_do_not_fit_are_an_error(cache_dtype):
    c = config()
    w = weights(c, seed=3)
    w["model.layers.1.self_attn.v_proj.weight"] = w["model.layers.1.self_attn.v_proj.weight"] * 1e6
    net = CpuStep.build(c, w, cache_dtype=cache_dtype)
    if cache_dtype != "float16":
        assert bool(chain(net, [1, 2, 3])[0].isfinite().all())
        return
    with pytest.raises(ValueError, match="NaN or infinite"):
        chain(net, [1, 2, 3])


def test_the_choice_by_argument_and_environment(monkeypatch):
    assert cache_dtype_of(None) == "float32" and cache_dtype_of("int8") == "int8"
    monkeypatch.setenv("POLYDEC_CACHE_DTYPE", "float16")
    assert cache_dtype_of(None) == "float16" and cache_dtype_of("float32") == "float32"
    kernel = polydec.load("zoo:tiny").checkpoint.kernel
    assert kernel.endswith(", float16 cache (approximate: keys and values rounded to 16 bits)")
    monkeypatch.setenv("POLYDEC_CACHE_DTYPE", "int4")
    with pytest.raises(
        ValueError, match="POLYDEC_CACHE_DTYPE is 'int4': it must be one of float32, float16, int8"
    ):
        cache_dtype_of(None)
    monkeypatch.delenv("POLYDEC_CACHE_DTYPE")
    assert (
        "approximate: keys and values rounded to 8 bits"
        in polydec.load("zoo:tiny", cache_dtype="int8").checkpoint.kernel
    )
    with pytest.raises(
        ValueError,
        match="cache_dtype is 'int4': it must be a word, one of float32, float16, int8",
    ):
        polydec.load("zoo:tiny", cache_dtype="int4")
    with pytest.raises(
        ValueError,
        match="cache_dtype is 'int8' and dtype is 'torch': only the native step has a choice",
    ):
        polydec.load("zoo:tiny", cache_dtype="int8", dtype="torch")
    with pytest.raises(ValueError, match="cache_dtype is 'int4'"):
        CpuStep.build(config(), weights(config()), cache_dtype="int4")
