"""Nothing is read past its end: what is handed to the library comes with its length, and is checked on the other side."""

from __future__ import annotations

import ctypes as C

import numpy as np
import pytest
import torch
from native_checkpoints import config, weights

from polydec.core.types import ScoreRequest
from polydec.models.native.library import (
    PARTS,
    CacheOf,
    NativeBatch,
    PartOf,
    native_step_availability,
)
from polydec.models.native.network import CpuStep
from polydec.models.nets.query import NetworkQuery

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)
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
    cache.stage_slots((-1, 0))
    return net.forward([NetworkQuery(cache, 0, (1, 2), range(2), ScoreRequest())])[0]


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


class Places:
    """A batch of two rows of one sequence, a shared part of 128 positions before them, as the library is given it."""

    def __init__(self, net):
        shape = (net.layers, 2, 2, 128, 32)
        self.net, self.kv = net, [torch.zeros(shape), torch.zeros(shape)]
        net._turn(512)  # the angles of all positions
        self.logits = torch.empty(2, 83)
        self.ints = {
            "layer": [0, 1],
            "exit": [-1, -1],
            "half": [3, 3],
            "token": [1, 2],
            "sequence": [0, 0],
            "position": [128, 129],
            "slot": [254, 255],
            "seen": [129, 130],
            "prefix": [128, 128],
            "tail_start": [0, 1],
            "tail": [254, 254, 255],
            "output_row": [0, 1],
            "logits_row": [0, 1],
        }
        self.counts = {"rows": 2, "sequences": 1, "layers": 2, "tails": 3, "outputs": 2}
        self.cache = {"capacity": 128, "start": 128, "parts": 1}
        self.part = {"capacity": 128, "first": 0, "stop": 128}

    def run(self, **changes):
        """The library's answer. A change names a field, or a field and which of its items."""
        groups = [{k: dict(enumerate(v)) for k, v in self.ints.items()}, dict(self.counts)]
        groups += [{f"cache_{k}": v for k, v in self.cache.items()}]
        groups += [{f"part_{k}": v for k, v in self.part.items()}]
        for name, value in changes.items():
            stem, _, at = name.rpartition("_")
            if stem in self.ints:
                groups[0][stem][int(at)] = value
            else:
                next(g for g in groups[1:] if name in g)[name] = value
        ints, counts, cache, part = groups
        kept = {k: np.array(list(v.values()), np.int32) for k, v in ints.items()}
        shared = PartOf(self.kv[0].data_ptr(), *(part[f"part_{k}"] for k in self.part))
        own = CacheOf(
            self.kv[1].data_ptr(), *(cache[f"cache_{k}"] for k in self.cache), C.addressof(shared)
        )
        batch = NativeBatch(**counts, **{k: v.ctypes.data for k, v in kept.items()})
        batch.cache, batch.logits = C.addressof(own), self.logits.data_ptr()
        return self.net._lib.step_run(self.net._model, C.byref(batch))


OUTSIDE = [
    {"slot_1": 256},
    {"slot_1": 127},
    {"slot_0": -1},
    {"tail_2": 256},
    {"tail_0": 127},
    {"tail_start_1": 2},
    {"tail_start_0": -1},
    {"tails": 2},
    {"tails": -1},
    {"seen_0": 0},
    {"prefix_0": 127},
    {"prefix_1": 257},
    {"position_1": 512},
    {"position_0": -1},
    {"token_0": 83},
    {"token_0": -1},
    {"sequence_1": 1},
    {"sequence_0": -1},
    {"output_row_1": 2},
    {"output_row_0": -1},
    {"outputs": 3},
    {"outputs": -1},
    {"rows": 0},
    {"sequences": 0},
    {"cache_capacity": 127},
    {"cache_capacity": -1},
    {"cache_start": 0},
    {"cache_start": 129},
    {"cache_parts": -1},
    {"cache_parts": 0},
    {"part_capacity": 127},
    {"part_first": -1},
    {"part_first": 1},
    {"part_stop": 127},
    {"part_stop": 0},
    {"part_stop": 256},
]


def test_places_outside_a_batch_and_its_caches_are_refused():
    """Each row, slot, path and part at its last legal place, and one beyond it."""
    places = Places(built())
    assert places.run() == 0 and bool(places.logits.isfinite().all())
    assert [places.run(**change) for change in OUTSIDE] == [6] * len(OUTSIDE)
    for change in (
        {"layer_1": 2},
        {"layer_0": -1},
        {"layer_1": 0},
        {"layers": 3},
        {"layers": -1},
        {"half_0": 0},
        {"half_1": 4},
        {"exit_0": 0},
    ):
        assert places.run(**change) == 7, change
    assert places.run() == 0
