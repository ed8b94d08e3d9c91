"""Every family next to transformers, from safetensors and GGUF, by torch and by the compiled step; trees as single steps."""

from __future__ import annotations

import pytest
import torch
from family_checkpoints import FAMILIES, laws_of, model_of, write
from gguf import GGMLQuantizationType as Type

from polydec.core.types import ScoreRequest
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.formats.mxfp4 import split_fused_experts
from polydec.models.native.library import native_step_availability
from polydec.models.native.network import CpuStep
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

ROW = ScoreRequest()
TREE = (-1, 0, 0, 1, 1, 2, 5, 3, 0)  # several branches, depth 3
TEXT = torch.randint(0, 97, (48,), generator=torch.Generator().manual_seed(5)).tolist()
native = pytest.mark.skipif(not native_step_availability()[0], reason=native_step_availability()[1])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """Name, transformers' model, its logits of TEXT, and a GGUF file of it."""
    model = model_of(request.param)
    path = tmp_path_factory.mktemp("families") / "m.gguf"
    return request.param, model, laws_of(model, request.param, TEXT), write(path, model)


def feed(net, cache, tokens):
    first = cache.stage_slots(range(-1, len(tokens) - 1))
    cache.commit_path(range(len(tokens)))
    return net.forward([NetworkQuery(cache, first, tuple(tokens), range(len(tokens)), ROW)])[
        0
    ].logits_RV


def tree(net, context):
    """Logits of the last token of a text and of a tree behind it, scored in one pass."""
    cache = net.new_cache()
    feed(net, cache, TEXT[: context - 1])
    first = cache.stage_slots([-1])
    cache.commit_path([0])
    cache.stage_slots(TREE)
    query = NetworkQuery(
        cache, first, tuple(TEXT[context - 1 : context + len(TREE)]), range(1 + len(TREE)), ROW
    )
    return net.forward([query])[0].logits_RV


def steps(net, context):
    """The same, each node by a text of its own, token by token."""
    out = []
    for i in range(-1, len(TREE)):
        path = []
        while i >= 0:
            path.append(TEXT[context + i])
            i = TREE[i]
        cache = net.new_cache()
        feed(net, cache, TEXT[:context])
        for x in [*TEXT[context - 1 : context], *path[::-1]][1:] or ():
            rows = feed(net, cache, [x])
        out.append(rows[-1] if path else feed(net, net.new_cache(), TEXT[:context])[-1])
    return torch.stack(out)


def near(got, want, tolerance=1e-5):
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=0.0)


@torch.inference_mode()
def test_torch_equals_transformers(family):
    _, model, want, path = family
    assert want.std() > 0.3
    net = LlamaTransformer.build(model.config.to_dict(), model.state_dict(), dtype="float32")
    near(feed(net, net.new_cache(), TEXT), want)
    file = GGUFCheckpoint(path)
    near(
        feed(
            net := LlamaTransformer.build(file.config, file, dtype="float32"), net.new_cache(), TEXT
        ),
        want,
    )
    near(tree(net, 26), steps(net, 26))


def test_blocks_of_four_bits_are_read_as_transformers_does():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    g, at, state = torch.Generator().manual_seed(3), "model.layers.0.mlp.experts.", {}
    for part, rows in (("gate_up_proj", 12), ("down_proj", 7)):
        state[f"{at}{part}_blocks"] = torch.randint(
            0, 256, (2, rows, 3, 16), generator=g, dtype=torch.uint8
        )
        state[f"{at}{part}_scales"] = torch.randint(
            110, 140, (2, rows, 3), generator=g, dtype=torch.uint8
        )
        state[f"{at}{part}_bias"] = torch.randn(2, rows, generator=g)
    got = split_fused_experts(state, 1)
    both, down = (
        convert_moe_packed_tensors(state[f"{at}{x}_proj_blocks"], state[f"{at}{x}_proj_scales"]).mT
        for x in ("gate_up", "down")
    )
    for part, want in (("gate", both[:, ::2]), ("up", both[:, 1::2]), ("down", down)):
        assert (
            torch.equal(got[f"{at}{part}_proj.weight"], want)
            and got.tensor_shape(f"{at}{part}_proj.weight") == want.shape
        )
    assert torch.equal(got[f"{at}up_proj.bias"], state[f"{at}gate_up_proj_bias"][:, 1::2])
    with pytest.raises(ValueError, match="gate_up_proj_scales has shape"):
        split_fused_experts(
            {**state, f"{at}gate_up_proj_scales": torch.zeros(2, 12, 2)}, 1
        ).tensor_shape(f"{at}up_proj.weight")


@native
@torch.inference_mode()
def test_the_compiled_step_equals_transformers_and_trees_its_steps_to_the_bit(family):
    _, model, want, path = family
    net = CpuStep.build(model.config.to_dict(), model.state_dict(), threads=2)
    near(feed(net, net.new_cache(), TEXT), want)
    file = GGUFCheckpoint(path)
    net = CpuStep.build(file.config, file, threads=1)
    whole = feed(net, net.new_cache(), TEXT)
    near(whole, want)
    cache = net.new_cache()
    assert torch.equal(torch.cat([feed(net, cache, [x]) for x in TEXT]), whole)
    assert torch.equal(tree(net, 26), steps(net, 26))
    portable = CpuStep.build(file.config, file, threads=2, isa="portable")
    assert torch.equal(feed(portable, portable.new_cache(), TEXT[:20]), whole[:20])


@native
@torch.inference_mode()
def test_gates_at_their_limits():
    """gpt-oss holds what enters its experts' gates below 7, and what they let through within 7 of 0."""
    model, g = model_of("gpt-oss"), torch.Generator().manual_seed(2)
    for name, t in model.named_parameters():
        if name.endswith("gate_up_proj_bias"):
            t.copy_(torch.randint(-9, 10, t.shape, generator=g))
    want = laws_of(model, "gpt-oss", TEXT)
    for net in (
        CpuStep.build(model.config.to_dict(), model.state_dict(), threads=2),
        LlamaTransformer.build(model.config.to_dict(), model.state_dict(), dtype="float32"),
    ):
        near(feed(net, net.new_cache(), TEXT), want, 1e-5 * float(want.abs().max()))


@native
@pytest.mark.parametrize("name", ["phi3", "mixtral", "gpt-oss"])
@torch.inference_mode()
def test_blocks_of_joined_matrices_are_taken_apart_as_they_stand(name, tmp_path):
    file = GGUFCheckpoint(write(tmp_path / "m.gguf", model_of(name), Type.Q8_0))
    net, plain = (
        CpuStep.build(file.config, file, threads=2),
        LlamaTransformer.build(file.config, file, dtype="float32"),
    )
    assert net.dtype.startswith("Q8_0")
    near(feed(net, net.new_cache(), TEXT), feed(plain, plain.new_cache(), TEXT))


@pytest.mark.parametrize(
    "name, change, says",
    [
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries"),
        (
            "phi3",
            {"intermediate_size": 95},
            "gate_up_proj.weight has 192 rows: the config asks for 190",
        ),
        ("olmo2", {"num_key_value_heads": 4}, "k_proj.weight has shape"),
        (
            "mixtral",
            {"num_local_experts": 6},
            r"gate.weight has shape \(5, 64\): the config asks for \(6, 64\)",
        ),
        ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6"),
        ("qwen3-moe", {"moe_intermediate_size": 4096}, "rows or more"),
        ("gpt-oss", {"quantization_config": {"quant_method": "awq"}}, "quantization_config is set"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
    ],
)
def test_configs_that_do_not_fit_are_refused_in_one_sentence(name, change, says):
    model = model_of(name)
    for build in (
        (LlamaTransformer.build, CpuStep.build)
        if native_step_availability()[0]
        else (LlamaTransformer.build,)
    ):
        with pytest.raises(ValueError, match=says) as e:
            build({**model.config.to_dict(), **change}, model.state_dict())
        assert len(str(e.value)) <= 300
