"""Forms that a config.json may have, next to what transformers makes of the same file: windows by layer, rotary scalings."""

from __future__ import annotations

import json

import pytest
import torch

from polydec.base.errors import FileError
from polydec.core.types import ScoreRequest
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

FULL, SLIDING = "full_attention", "sliding_attention"
TEXT = torch.randint(0, 64, (32,), generator=torch.Generator().manual_seed(5)).tolist()
SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
    "sliding_window": 9,
}
EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
MIXED = {"layer_types": [SLIDING, FULL, FULL]}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def config_of(family, form):
    more = EXPERTS if family in ("mixtral", "qwen3_moe", "gpt_oss") else {}
    return {"model_type": family, **SIZE, **more, **form}


@torch.no_grad()
def theirs(path, config):
    """Weights, and transformers' logits of TEXT, of a random model of a config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    (path / "config.json").write_text(json.dumps(config))
    read = AutoConfig.from_pretrained(path)
    model = AutoModelForCausalLM.from_config(read, attn_implementation="eager").float().eval()
    g = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.copy_(torch.randn(p.shape, generator=g) * (0.3 if p.ndim > 1 else 0.1))
    return model.state_dict(), model(torch.tensor([TEXT]), use_cache=False).logits[0]


@torch.inference_mode()
def ours(config, weights):
    net = LlamaTransformer.build(config, weights, dtype="float32")
    cache = net.new_cache()
    first = cache.stage_slots(range(-1, len(TEXT) - 1))
    cache.commit_path(range(len(TEXT)))
    query = NetworkQuery(cache, first, tuple(TEXT), range(len(TEXT)), ScoreRequest())
    return net.forward([query])[0].logits_RV


WINDOWS = {
    "all full": {"layer_types": [FULL] * 3},
    "mixed": MIXED,
    "used and mixed": {**MIXED, "use_sliding_window": True},
    "used from a layer on": {"use_sliding_window": True, "max_window_layers": 1},
    "not used": {"use_sliding_window": False},
    "a pattern": {"sliding_window_pattern": 2},
}
LISTED = ("mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3", "gpt_oss")
"""Families whose layers are windowed as layer_types says."""
REFUSED = {(f, "mixed") for f in ("qwen2", "qwen3")}
CASES = [
    *((f, name) for f in LISTED for name in WINDOWS if (f, name) not in REFUSED),
    *((f, "used and mixed") for f in ("llama", "phi3", "mixtral", "qwen3_moe")),
]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_windows_are_those_of_transformers(family, name, tmp_path):
    config = config_of(family, WINDOWS[name])
    weights, want = theirs(tmp_path, config)
    torch.testing.assert_close(ours(config, weights), want, atol=2e-4, rtol=0.0)


@pytest.mark.parametrize("family", LISTED)
def test_a_window_that_layers_need_must_be_there(family):
    form = {**MIXED, "sliding_window": None, "use_sliding_window": True}
    with pytest.raises(
        FileError, match="layer_types has 'sliding_attention' and there is no window"
    ):
        LlamaTransformer.build(config_of(family, form), dict.fromkeys("abc", torch.zeros(1)))


DEFAULT = {"rope_type": "default", "rope_theta": 300.0}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.5] * 4,
    "long_factor": [3.0] * 4,
    "original_max_position_embeddings": 64,
}
ROPES = {
    "parameters alone": {"rope_parameters": {**LINEAR, "rope_theta": 300.0}},
    "scaling alone": {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 500.0},
    "both": {"rope_scaling": LINEAR, "rope_parameters": DEFAULT},
    "both, and a base": {"rope_scaling": LINEAR, "rope_parameters": DEFAULT, "rope_theta": 500.0},
    "two bases": {"rope_scaling": {**LINEAR, "rope_theta": 90.0}, "rope_parameters": DEFAULT},
    "two kinds": {"rope_scaling": YARN, "rope_parameters": {**LINEAR, "rope_theta": 300.0}},
    "a default beside a kind": {
        "rope_scaling": {"rope_type": "default"},
        "rope_parameters": {**LINEAR, "rope_theta": 300.0},
    },
    "an empty scaling": {"rope_scaling": {}, "rope_parameters": {**LINEAR, "rope_theta": 300.0}},
    "type and rope_type": {"rope_scaling": {"type": "dynamic", **LINEAR}},
    "no first context": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "first context twice": {"rope_scaling": YARN, "original_max_position_embeddings": 8},
}
LAYERS = {
    "both kinds": {"rope_parameters": {FULL: {**LINEAR, "rope_theta": 300.0}, SLIDING: DEFAULT}},
    "one kind": {"rope_parameters": {FULL: {**LINEAR, "rope_theta": 300.0}}},
    "none of a kind": {"rope_parameters": {FULL: DEFAULT, SLIDING: None}},
    "a scaling beside": {
        "rope_scaling": LINEAR,
        "rope_parameters": {FULL: DEFAULT, SLIDING: DEFAULT},
    },
    "bases beside": {
        "rope_parameters": {FULL: LINEAR},
        "rope_theta": 500.0,
        "rope_local_base_freq": 70.0,
    },
    "a scaling alone": {"rope_scaling": LINEAR, "rope_theta": 500.0, "rope_local_base_freq": 70.0},
    "another kind for each": {
        "rope_parameters": {
            FULL: {**YARN, "rope_theta": 300.0},
            SLIDING: {"type": "linear", "factor": 2.0, "rope_theta": 90.0},
        }
    },
}
TURNS = [
    *((f, name, form) for f in ("llama", "gpt_oss") for name, form in ROPES.items()),
    *(("gemma3_text", name, {**MIXED, **form}) for name, form in LAYERS.items()),
    ("phi3", "long", {"rope_scaling": LONG, "rope_parameters": DEFAULT}),
]


@pytest.mark.parametrize(("family", "name", "form"), TURNS, ids=[f"{f}, {n}" for f, n, _ in TURNS])
def test_turns_are_those_of_transformers(family, name, form, tmp_path):
    config = config_of(family, form)
    weights, want = theirs(tmp_path, config)
    torch.testing.assert_close(ours(config, weights), want, atol=2e-4, rtol=0.0)


@pytest.mark.parametrize(
    ("family", "form", "match"),
    [
        ("llama", LAYERS["both kinds"], "rope_parameters has full_attention: this model turns all"),
        ("gemma2", LAYERS["one kind"], "rope_parameters has full_attention: this model turns all"),
        ("gemma3_text", {"rope_parameters": DEFAULT}, "rope_parameters has no full_attention"),
        (
            "gemma3_text",
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope_scaling has a type and no rope_type",
        ),
        ("llama", {"rope_parameters": DEFAULT, "rope_scaling": {"rope_type": "odd"}}, "is 'odd'"),
    ],
)
def test_turns_that_nobody_can_be_sure_of_are_refused(family, form, match):
    with pytest.raises(FileError, match=match):
        LlamaTransformer.build(config_of(family, form), dict.fromkeys("abc", torch.zeros(1)))


@pytest.mark.parametrize("family", ["llama", "phi3", "olmo2", "mixtral", "gpt_oss"])
def test_what_norms_add_where_the_config_does_not_say_it(family):
    from transformers import AutoConfig

    from polydec.models.formats.architectures import FAMILIES

    assert AutoConfig.for_model(family).rms_norm_eps == FAMILIES[family].eps
