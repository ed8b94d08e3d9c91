"""Parity with transformers on tiny random checkpoints of every family, past every RoPE scaling."""
import pytest
import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from polydec.core.types import Want
from polydec.models.lm import Query
from polydec.models.transformer import Transformer

SIZE = dict(vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            intermediate_size=80, max_position_embeddings=128, pad_token_id=None, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16)
FAMILIES = {
    "llama": LlamaConfig(**SIZE),
    "llama tied, biases": LlamaConfig(**SIZE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama, wide heads": LlamaConfig(**SIZE, head_dim=16),
    "llama, no groups": LlamaConfig(**{**SIZE, "num_key_value_heads": 6}),
    "llama3": LlamaConfig(**SIZE, rope_parameters=LLAMA3),
    "linear": LlamaConfig(**SIZE, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)),
    "yarn": LlamaConfig(**SIZE, rope_parameters=YARN),
    "yarn, magnitudes": LlamaConfig(**SIZE, rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 16}),
    "mistral": MistralConfig(**SIZE, sliding_window=None),
    "mistral, window": MistralConfig(**SIZE, sliding_window=11),
    "qwen2": Qwen2Config(**SIZE),
    "qwen2, window": Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZE, head_dim=16, tie_word_embeddings=True),
    "qwen3, biases": Qwen3Config(**SIZE, head_dim=8, attention_bias=True),
}


def randomise(model, seed=0):
    """Every parameter random, norms and biases too: ones and zeros hide faults."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        p.data = 1.0 + 0.3 * r if "norm" in name else (0.5 * r if name.endswith("bias") else r * p.shape[-1] ** -0.5 * 1.5)
    return model


def pair(config, dtype="float32", seed=0):
    """(transformers' model in float32, ours)"""
    cls = getattr(transformers, config.architectures[0] if config.architectures else {
        "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM"}[config.model_type])
    config._attn_implementation = "eager"
    theirs = randomise(cls(config).eval().to(torch.float32), seed)
    return theirs, Transformer.build(config.to_dict(), theirs.state_dict(), dtype=dtype)


def text(n, seed=0, size=97):
    return torch.randint(0, size, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def feed(net, cache, tokens, rows=None, want=Want(), **more):
    """Commit these tokens and answer some of them (default: all)."""
    first = cache.stage(range(-1, len(tokens) - 1))
    cache.commit(range(len(tokens)))
    return net.forward([Query(cache, first, tuple(tokens), range(len(tokens)) if rows is None else rows, want, **more)])[0]


def close(a, b, tolerance=1e-4):
    torch.testing.assert_close(a.float().log_softmax(-1), b.float().log_softmax(-1), atol=tolerance, rtol=0.0)


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_families_equal_transformers(name):
    theirs, ours = pair(FAMILIES[name])
    tokens = text(70)
    truth = theirs(torch.tensor([tokens])).logits[0]
    close(feed(ours, ours.new_cache(), tokens).logits_RV, truth)
    cache, got = ours.new_cache(), []
    for a, b in ((0, 20), (20, 21), (21, 25), (25, 63), (63, 64), (64, 70)):
        got.append(feed(ours, cache, tokens[a:b]).logits_RV)
    close(torch.cat(got), truth)
