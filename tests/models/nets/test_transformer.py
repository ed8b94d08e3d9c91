"""Parity with transformers on tiny random checkpoints of every family, past every RoPE scaling; trees; parts of the network."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.nets.hf import cache_keyword
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

ROW = ScoreRequest()
SIZE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 1.9, 2.7, 3.6],
    "original_max_position_embeddings": 24,
    "factor": 2.0,
}
FAMILIES = {
    "llama": LlamaConfig(**SIZE),
    "llama tied, biases": LlamaConfig(
        **SIZE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama, wide heads": LlamaConfig(**SIZE, head_dim=16),
    "llama, no groups": LlamaConfig(**{**SIZE, "num_key_value_heads": 6}),
    "llama3": LlamaConfig(**SIZE, rope_parameters=LLAMA3),
    "linear": LlamaConfig(
        **SIZE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "yarn": LlamaConfig(**SIZE, rope_parameters=YARN),
    "yarn, magnitudes": LlamaConfig(
        **SIZE, rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 16}
    ),
    "mistral": MistralConfig(**SIZE, sliding_window=None),
    "mistral, window": MistralConfig(**SIZE, sliding_window=11),
    "qwen2": Qwen2Config(**SIZE),
    "qwen2, window": Qwen2Config(
        **SIZE, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SIZE, head_dim=16, tie_word_embeddings=True),
    "qwen3, biases": Qwen3Config(**SIZE, head_dim=8, attention_bias=True),
}
MODELS = {
    "llama": transformers.LlamaForCausalLM,
    "mistral": transformers.MistralForCausalLM,
    "qwen2": transformers.Qwen2ForCausalLM,
    "qwen3": transformers.Qwen3ForCausalLM,
}


def theirs_of(config, seed=0):
    """transformers' model in float32, every parameter random, norms and biases too: ones and zeros hide faults."""
    config._attn_implementation = "eager"
    model, g = (
        MODELS[config.model_type](config).eval().to(torch.float32),
        torch.Generator().manual_seed(seed),
    )
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        p.data = (
            1.0 + 0.3 * r
            if "norm" in name
            else (0.5 * r if name.endswith("bias") else 1.5 * r * p.shape[-1] ** -0.5)
        )
    return model


def pair(name, dtype="float32", seed=0):
    theirs = theirs_of(FAMILIES[name], seed)
    return theirs, LlamaTransformer.build(
        FAMILIES[name].to_dict(), theirs.state_dict(), dtype=dtype
    )


def text(n, seed=0, size=97):
    return torch.randint(0, size, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def feed(net, cache, tokens, rows=None, want=ROW, **more):
    """Commit these tokens and answer some of them (default: all)."""
    first = cache.stage_slots(range(-1, len(tokens) - 1))
    cache.commit_path(range(len(tokens)))
    return net.forward(
        [
            NetworkQuery(
                cache,
                first,
                tuple(tokens),
                range(len(tokens)) if rows is None else rows,
                want,
                **more,
            )
        ]
    )[0]


def close(a, b, tolerance=1e-4):
    torch.testing.assert_close(
        a.double().log_softmax(-1), b.double().log_softmax(-1), atol=tolerance, rtol=0.0
    )


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_families_equal_transformers(name):
    theirs, ours = pair(name)
    tokens = text(70)
    truth = theirs(torch.tensor([tokens])).logits[0]
    close(feed(ours, ours.new_cache(), tokens).logits_RV, truth)
    cache, got = ours.new_cache(), []
    for a, b in ((0, 20), (20, 21), (21, 25), (25, 63), (63, 64), (64, 70)):
        got.append(feed(ours, cache, tokens[a:b]).logits_RV)
    close(torch.cat(got), truth)


@pytest.mark.parametrize("rope", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
@torch.inference_mode()
def test_scalings_that_look_at_the_length_equal_decoding_token_by_token(rope):
    config = LlamaConfig(
        **{**SIZE, "max_position_embeddings": 24 if rope["rope_type"] == "dynamic" else 48},
        rope_parameters=rope,
    )
    theirs = theirs_of(config)
    ours = LlamaTransformer.build(config.to_dict(), theirs.state_dict(), dtype="float32")
    past = {cache_keyword(theirs): transformers.DynamicCache(config=config)}
    tokens, truth = text(40), []
    for x in tokens:
        truth.append(theirs(torch.tensor([[x]]), **past).logits[0, 0])
    close(feed(ours, ours.new_cache(), tokens).logits_RV, torch.stack(truth))
    assert ours.context == (96 if rope["rope_type"] == "dynamic" else 48)


@torch.inference_mode()
def test_old_configs_name_the_base_and_the_scaling_at_the_top():
    theirs, new = pair("llama3")
    config = {k: v for k, v in FAMILIES["llama3"].to_dict().items() if k != "rope_parameters"}
    scaling = {k: v for k, v in LLAMA3.items() if k not in ("rope_theta", "rope_type")}
    old = LlamaTransformer.build(
        {**config, "rope_theta": 5e5, "rope_scaling": {**scaling, "type": "llama3"}},
        theirs.state_dict(),
        dtype="float32",
    )
    tokens = text(50)
    assert torch.equal(
        feed(old, old.new_cache(), tokens).logits_RV, feed(new, new.new_cache(), tokens).logits_RV
    )


@torch.inference_mode()
def test_partial_rotary_leaves_the_other_dimensions_alone():
    from polydec.models.formats.rope import RotaryEmbedding
    from polydec.models.nets.transformer import _pairs

    config = LlamaConfig(**SIZE, head_dim=16).to_dict()
    config["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
    }
    rope = RotaryEmbedding.of_config(config, 16)
    assert rope.dim == 8 and rope.factor_table(0, 5).shape == (5, 4)
    assert _pairs(16, 8, torch.device("cpu")).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, *range(8, 16)]
    theirs = theirs_of(FAMILIES["llama, wide heads"])
    ours, state = (
        LlamaTransformer.build(config, theirs.state_dict(), dtype="float64"),
        theirs.state_dict(),
    )
    # the same with full rotation and the frequencies of the other pairs at zero
    spread = {k: _spread(v) if "q_proj" in k or "k_proj" in k else v for k, v in state.items()}
    whole = LlamaTransformer.build(
        {**config, "rope_parameters": {"rope_type": "default"}}, spread, dtype="float64"
    )
    whole.config = replace(whole.config, ropes=(_Half(whole.config.ropes[0], rope),))
    tokens = text(20)
    close(
        feed(ours, ours.new_cache(), tokens).logits_RV,
        feed(whole, whole.new_cache(), tokens).logits_RV,
        1e-9,
    )


def _spread(weight):
    """Move partners (i, i + 4) of the first eight dimensions of each head to (i, i + 8)."""
    order = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    return weight.view(-1, 16, weight.shape[1])[:, order].reshape(weight.shape)


class _Half:
    def __init__(self, whole, half):
        self.dim, self.context, self._half = whole.dim, whole.context, half

    def factor_table(self, start, stop):
        turn = self._half.factor_table(start, stop)
        return torch.cat([turn, torch.ones_like(turn)], -1)


TREE = (-1, 0, 0, 1, 1, 2, 5, 3, 0)  # several branches, depth 3


@pytest.mark.parametrize("name", ["llama", "llama3", "mistral, window", "qwen2, window", "qwen3"])
@pytest.mark.parametrize("context", [1, 3, 30])
@torch.inference_mode()
def test_every_node_of_a_tree_is_scored_as_its_path(name, context):
    theirs, ours = pair(name)
    left, nodes = text(context), text(len(TREE), seed=1)
    cache = ours.new_cache()
    if context > 1:
        feed(ours, cache, left[:-1])
    first = cache.stage_slots([-1])  # the last token of the text and the tree ride in one query
    cache.commit_path([0])
    cache.stage_slots(TREE)
    got = ours.forward(
        [NetworkQuery(cache, first, (left[-1], *nodes), range(1, 1 + len(TREE)), ROW)]
    )[0].logits_RV
    for i in range(len(TREE)):
        path, at = [nodes[i]], TREE[i]
        while at >= 0:
            path.append(nodes[at])
            at = TREE[at]
        truth = theirs(torch.tensor([left + path[::-1]])).logits[0, -1]
        close(got[i], truth)


@pytest.mark.parametrize("name", ["llama", "mistral, window"])
@torch.inference_mode()
def test_a_staged_tree_grows_node_by_node(name):
    _, ours = pair(name)
    left, nodes = text(21), text(len(TREE), seed=1)
    whole, grown = ours.new_cache(), ours.new_cache()
    for cache in (whole, grown):
        feed(ours, cache, left)
    first = whole.stage_slots(TREE)
    truth = ours.forward([NetworkQuery(whole, first, tuple(nodes), range(len(TREE)), ROW)])[
        0
    ].logits_RV
    for a, b in ((0, 1), (1, 3), (3, 8), (8, 9)):
        first = grown.stage_slots(TREE[a:b])
        got = ours.forward([NetworkQuery(grown, first, tuple(nodes[a:b]), range(b - a), ROW)])[
            0
        ].logits_RV
        close(got, truth[a:b], 1e-5)


@torch.inference_mode()
def test_layers_embeddings_and_hidden_states():
    theirs, ours = pair("qwen3")
    tokens = text(17)
    out = theirs(torch.tensor([tokens]), output_hidden_states=True)
    hidden = out.hidden_states  # before each layer; the last one after the final norm
    want = ScoreRequest(hidden=True)
    low = feed(ours, ours.new_cache(), tokens, layers=(0, 1), want=want)
    torch.testing.assert_close(low.hidden_RH, hidden[2][0], atol=1e-4, rtol=1e-4)
    close(low.logits_RV, theirs.lm_head(theirs.model.norm(hidden[2]))[0])
    cache = ours.new_cache()
    first = cache.stage_slots(range(-1, 16))
    cache.commit_path(range(17))
    for layers, token, embed in (((0, 1), tuple(tokens), None), ((2,), (), low.hidden_RH)):
        a = ours.forward([NetworkQuery(cache, first, token, range(17), want, embed, layers)])[0]
    close(a.logits_RV, out.logits[0])
    close(
        feed(ours, cache, text(3, seed=2)).logits_RV,
        theirs(torch.tensor([tokens + text(3, seed=2)])).logits[0, -3:],
    )
    torch.testing.assert_close(theirs.model.norm(a.hidden_RH), hidden[3][0], atol=1e-4, rtol=1e-4)
    embedded = ours.new_cache()
    first = embedded.stage_slots(range(-1, 16))
    embedded.commit_path(range(17))
    e = theirs.get_input_embeddings()(torch.tensor(tokens))
    close(
        ours.forward([NetworkQuery(embedded, first, (), range(17), ROW, e)])[0].logits_RV,
        out.logits[0],
    )


@torch.inference_mode()
def test_only_what_is_asked_for_is_answered():
    _, ours = pair("llama")
    tokens, whole = text(9), None
    whole = feed(ours, ours.new_cache(), tokens).logits_RV
    assert torch.equal(feed(ours, ours.new_cache(), tokens, rows=[2, 7]).logits_RV, whole[[2, 7]])
    nothing = feed(
        ours, ours.new_cache(), tokens, want=ScoreRequest(law=RowDetail.NOTHING, hidden=True)
    )
    assert nothing.logits_RV is None and nothing.hidden_RH.shape == (9, 48)
    assert feed(ours, ours.new_cache(), tokens, rows=()).logits_RV is None


@torch.inference_mode()
def test_a_bidirectional_network_sees_the_whole_canvas():
    theirs, _ = pair("llama")
    ours = LlamaTransformer.build(
        {**FAMILIES["llama"].to_dict(), "polydec_causal": False},
        theirs.state_dict(),
        dtype="float32",
    )
    tokens = text(40)
    open_mask = torch.zeros(1, 1, 40, 40)
    truth = theirs(torch.tensor([tokens]), attention_mask=open_mask).logits[0]
    close(feed(ours, ours.new_cache(), tokens).logits_RV, truth)
    cache = ours.new_cache()
    cache.stage_slots(range(-1, 9))
    short = ours.forward([NetworkQuery(cache, 0, tuple(tokens[:10]), range(10), ROW)])[0].logits_RV
    close(
        short,
        theirs(torch.tensor([tokens[:10]]), attention_mask=torch.zeros(1, 1, 10, 10)).logits[0],
    )


@torch.inference_mode()
def test_a_cut_vocabulary_and_narrow_embeddings():
    theirs = theirs_of(FAMILIES["llama"])
    config = FAMILIES["llama"].to_dict()
    state, some = dict(theirs.state_dict()), torch.tensor([3, 5, 8, 13, 21, 96])
    narrow = torch.randn(97, 20, generator=torch.Generator().manual_seed(3))
    proj = torch.randn(48, 20, generator=torch.Generator().manual_seed(4)) * 20**-0.5
    cut = LlamaTransformer.build(
        config,
        {
            **state,
            "lm_head.weight": state["lm_head.weight"][some],
            "lm_head.tokens": some,
            "model.embed_tokens.weight": narrow,
            "model.embed_tokens.proj.weight": proj,
        },
        dtype="float32",
    )
    full = LlamaTransformer.build(
        config, {**state, "model.embed_tokens.weight": narrow @ proj.T}, dtype="float32"
    )
    tokens = text(12)
    got, truth = (
        feed(cut, cut.new_cache(), tokens).logits_RV,
        feed(full, full.new_cache(), tokens).logits_RV,
    )
    torch.testing.assert_close(got[:, some], truth[:, some], atol=1e-4, rtol=1e-4)
    rest = [i for i in range(97) if i not in some.tolist()]
    assert got.shape == truth.shape and bool((got[:, rest] == float("-inf")).all())


@pytest.mark.parametrize(
    "dtype, tolerance", [("float64", 1e-4), ("float16", 2e-2), ("bfloat16", 0.3), ("auto", 0.3)]
)
@torch.inference_mode()
def test_dtypes(dtype, tolerance):
    from polydec.models.nets.linear import has_bf16

    if dtype == "bfloat16" and not has_bf16():
        pytest.skip("this CPU has no bfloat16 arithmetic")
    theirs, ours = pair("llama3", dtype)
    tokens = text(40)
    got = feed(ours, ours.new_cache(), tokens).logits_RV
    close(got, theirs(torch.tensor([tokens])).logits[0], tolerance)
    assert got.dtype == (torch.float64 if dtype == "float64" else torch.float32) and ours.kernel
    assert ours.dtype == dtype or dtype == "auto"


def test_saved_and_reloaded(tmp_path):
    from safetensors.torch import load_file

    theirs, ours = pair("qwen2")
    theirs.save_pretrained(tmp_path)
    again = LlamaTransformer.build(
        json.loads((tmp_path / "config.json").read_text()),
        load_file(tmp_path / "model.safetensors"),
        dtype="float32",
    )
    tokens = text(20)
    assert torch.equal(
        feed(again, again.new_cache(), tokens).logits_RV,
        feed(ours, ours.new_cache(), tokens).logits_RV,
    )


@pytest.mark.parametrize(
    "change, says",
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4"),
        ({"hidden_size": None}, "config lacks hidden_size"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type is 'spiral'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": 98}, "the config asks for \\(98, 48\\)"),
        ({"num_hidden_layers": 4}, "weights lack model.layers.3"),
        ({"intermediate_size": 81}, "the config asks for"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(change, says):
    state = theirs_of(FAMILIES["llama"]).state_dict()
    with pytest.raises(ValueError, match=says):
        LlamaTransformer.build({**FAMILIES["llama"].to_dict(), **change}, state, dtype="float32")


def test_dtypes_devices_and_windows_that_cannot_be_served(monkeypatch):
    from polydec.models.nets import linear

    theirs = theirs_of(FAMILIES["mistral, window"])
    config, state = FAMILIES["mistral, window"].to_dict(), theirs.state_dict()
    for options, says in (
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"device": "tpu"}, "device is 'tpu'"),
    ):
        with pytest.raises(ValueError, match=says):
            LlamaTransformer.build(config, state, **options)
    with pytest.raises(ValueError, match="bidirectional"):
        LlamaTransformer.build({**config, "polydec_causal": False}, state)
    with pytest.raises(ValueError, match=r"weights lack lm_head\.weight"):
        LlamaTransformer.build(
            {**config, "tie_word_embeddings": False},
            {k: v for k, v in state.items() if k != "lm_head.weight"},
        )
    monkeypatch.setattr(linear, "has_bf16", lambda: False)
    with pytest.raises(ValueError, match="no bfloat16 arithmetic"):
        LlamaTransformer.build(config, state, dtype="bfloat16")


def test_onednn_that_may_not_use_bfloat16_is_not_asked_for_it():
    """Whether it may is read once in a process, so this has one of its own."""
    program = (
        "import torch\n"
        "from polydec.models.nets import linear\n"
        "usable = [kernel for kernel in linear.MEASURED if kernel.usable()]\n"
        "layers = [kernel.pack(torch.zeros(32, 32), None) for kernel in usable]\n"
        "print(*[kernel.name for kernel in usable])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "onednn-fp32" in done.stdout and "onednn-bf16" not in done.stdout
