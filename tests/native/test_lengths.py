"""Nothing is read past its end: what is handed to the library comes with its length, and is checked on the other side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_checkpoints import config, weights

from polydec.core.types import Want
from polydec.models.cpu.library import PARTS, available
from polydec.models.cpu.network import CpuStep
from polydec.models.query import Query

pytestmark = pytest.mark.skipif(not available()[0], reason=available()[1])
BIAS = "model.layers.1.self_attn.q_proj.bias"
VECTORS = (
    "model.norm.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    BIAS,
)


def built(changes=None, kind="qwen2", **fields):
    c = config(kind, **fields)
    return CpuStep.build(c, {**weights(c), **(changes or {})}, threads=1)


def answer(net):
    cache = net.new_cache()
    cache.stage((-1, 0))
    return net.forward([Query(cache, 0, (1, 2), range(2), Want())])[0]


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize(
    "shape",
    [
        lambda n: (n, 0),
        lambda n: (n, 1),
        lambda n: (n - 1,),
        lambda n: (n + 1,),
        lambda n: (0,),
        lambda n: (),
        lambda n: (1, n),
        lambda n: (n // 2, 2),
    ],
)
def test_vectors_of_other_shapes(name, shape):
    n = len(weights(config("qwen2"))[name])
    with pytest.raises(ValueError, match=f"{name} has shape .*: the config asks for \\({n},\\)"):
        built({name: torch.ones(shape(n))})


@pytest.mark.parametrize(
    "types",
    [
        [],
        ["sliding_attention"],
        ["full_attention", "sliding_attention"] * 2,
        "full_attention",
        3,
        ["full_attention", 5],
    ],
)
def test_layer_types_of_another_length(types):
    with pytest.raises(ValueError, match="layer_types"):
        built(use_sliding_window=True, sliding_window=8, layer_types=types)


def test_the_library_checks_lengths_itself():
    net = built()
    lib, model, some = net._lib, net._model, np.ones(4096, np.float32)
    at, width, head = some.ctypes.data, net.config.width, 32
    for count in (0, width - 1, width + 1, 1 << 40):
        assert lib.step_vector(model, 0, PARTS["norm"], 0, at, count, width, 0) == 3
        assert lib.step_row(model, 1, at, count) == 3
    assert lib.step_vector(model, 0, PARTS["norm"], 0, None, width, width, 0) == 3
    assert lib.step_vector(model, 0, PARTS["norm"], 0, at, width, width, 0) == 0
    assert lib.step_weight(model, 0, PARTS["q"], 0, None, 4 * head * width, 4 * head, width, 0) in (
        2,
        3,
    )
    assert lib.step_rotary(model, 0, at, at, head // 2 * 3, 4) == 3
    assert lib.step_rotary(model, 0, at, at, head // 2 * 4, 4) == 0
    assert (
        lib.step_rotary(model, 1, at, at, head // 2 * 4, 4)
        == lib.step_rotary(model, -1, at, at, head // 2 * 4, 4)
        == 1
    )
    for count in (0, 1, 3):
        assert lib.step_turns(model, np.zeros(4, np.int32).ctypes.data, count) == 3
    for which in (-2, 1):
        assert lib.step_turns(model, np.full(2, which, np.int32).ctypes.data, 2) == 2
    assert lib.step_turns(model, np.array([0, -1], np.int32).ctypes.data, 2) == 0
    for count in (0, 1, 3):
        assert lib.step_windows(model, np.zeros(4, np.int32).ctypes.data, count) == 3
    assert lib.step_windows(model, None, 2) == 3
    assert lib.step_top(model, at, 20, 2, 11, 1, at, 2) == 3
    assert lib.step_top(model, at, 22, 2, 11, 3, at, 2) == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name",
    ["model.norm.weight", BIAS, "model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_are_none(name, bad, dtype):
    t = weights(config("qwen2"))[name].to(dtype)
    t.view(-1)[t.numel() // 2] = bad
    with pytest.raises(
        ValueError, match=f"{name.rpartition('.')[0]}.*: a number in it is NaN or infinite"
    ):
        built({name: t})


def test_logits_that_are_no_numbers():
    """Finite weights whose products are not: one error, not token 0 for ever."""
    for scale in (3e38, -3e38):
        net = built(
            {
                "lm_head.weight": torch.full((83, 64), scale),
                "model.norm.weight": torch.full((64,), 1e30),
            }
        )
        with pytest.raises(ValueError, match="scores of the next token are NaN or infinite"):
            answer(net)
