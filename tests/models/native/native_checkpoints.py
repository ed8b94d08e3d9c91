"""Random checkpoints for the tests of the native step: Hugging Face style, and GGUF files of any block type."""

from __future__ import annotations

import gguf
import numpy as np
import torch

TYPES = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q2_K",
    "Q3_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)
HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q5_0": (0,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}


def config(kind: str = "llama", **changes) -> dict:
    c = {
        "model_type": kind,
        "vocab_size": 83,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    return {**c, **changes}


def weights(c: dict, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Norms and biases random as well: ones and zeros hide faults."""
    g = torch.Generator().manual_seed(seed)
    W, inner, D = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    H, KV, V = c["num_attention_heads"], c["num_key_value_heads"], c["vocab_size"]

    def matrix(n, k):
        return (torch.randn(n, k, generator=g) / k**0.5).to(dtype)

    def norm(n):
        return 1 + 0.3 * torch.randn(n, generator=g)

    w = {"model.embed_tokens.weight": matrix(V, W) * 4, "model.norm.weight": norm(W)}
    if not c["tie_word_embeddings"]:
        w["lm_head.weight"] = matrix(V, W) * 3
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, n, k in (
            ("self_attn.q_proj", H * D, W),
            ("self_attn.k_proj", KV * D, W),
            ("self_attn.v_proj", KV * D, W),
            ("self_attn.o_proj", W, H * D),
            ("mlp.gate_proj", inner, W),
            ("mlp.up_proj", inner, W),
            ("mlp.down_proj", W, inner),
        ):
            w[p + name + ".weight"] = matrix(n, k)
            if c["model_type"] == "qwen2" and name[-6] in "qkv":
                w[p + name + ".bias"] = 0.3 * torch.randn(n, generator=g)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[p + name + ".weight"] = norm(W)
        if c["model_type"] == "qwen3":
            w[p + "self_attn.q_norm.weight"], w[p + "self_attn.k_norm.weight"] = norm(D), norm(D)
    return w


def blocks(kind: str, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Random blocks [n, bytes]: every code and every sub-scale occurs, scales stay small."""
    if kind == "F32":
        return (rng.standard_normal((n, k)) * k**-0.5).astype(np.float32).view(np.uint8)
    if kind == "F16":
        return (rng.standard_normal((n, k)) * k**-0.5).astype(np.float16).view(np.uint8)
    if kind == "BF16":
        return (
            torch.from_numpy(rng.standard_normal((n, k)) * k**-0.5)
            .bfloat16()
            .view(torch.uint8)
            .numpy()
            .reshape(n, 2 * k)
        )
    size, count = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (n * k // size, count), dtype=np.uint8)
    large = {
        "Q8_0": 100,
        "Q4_K": 400,
        "Q5_K": 900,
        "Q6_K": 3000,
        "Q2_K": 40,
        "Q3_K": 60,
        "IQ4_NL": 70,
        "IQ4_XS": 1300,
    }.get(kind, 12)
    if kind == "MXFP4":  # powers of two
        raw[:, 0] = rng.integers(121, 124, len(raw)) - round(np.log2(k) / 2) + 4
    for j, at in enumerate(HALVES[kind]):
        sign = rng.choice([-1, 1], len(raw)) if len(HALVES[kind]) == 1 else 1
        scale = rng.uniform(0.5, 1, len(raw)) / large / k**0.5 * sign
        if j:  # offsets that centre the codes
            scale = scale * (-8 if kind.endswith("1") else {"Q4_K": 8, "Q2_K": 1.5}.get(kind, 16))
        raw[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    return raw.reshape(n, -1)


def write_gguf(
    path,
    kind: str,
    seed: int = 0,
    width: int = 256,
    inner: int = 512,
    vocab: int = 83,
    tied: bool = False,
    extra=lambda w: None,
) -> None:
    """extra: what else is written, given the writer."""
    rng, D, H, KV, layers = np.random.default_rng(seed), 64, 4, 2, 2
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_block_count(layers)
    w.add_context_length(512)
    w.add_embedding_length(width)
    w.add_feed_forward_length(inner)
    w.add_head_count(H)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(D)
    w.add_key_length(D)
    w.add_vocab_size(vocab)
    extra(w)
    t = gguf.GGMLQuantizationType[kind]

    def put(name, n, k):
        w.add_tensor(name, blocks(kind, n, k, rng), raw_dtype=t)

    put("token_embd.weight", vocab, width)
    if not tied:
        put("output.weight", vocab, width)
    w.add_tensor("output_norm.weight", (1 + 0.3 * rng.standard_normal(width)).astype(np.float32))
    for i in range(layers):
        for name, n, k in (
            ("attn_q", H * D, width),
            ("attn_k", KV * D, width),
            ("attn_v", KV * D, width),
            ("attn_output", width, H * D),
            ("ffn_gate", inner, width),
            ("ffn_up", inner, width),
            ("ffn_down", width, inner),
        ):
            put(f"blk.{i}.{name}.weight", n, k)
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(
                f"blk.{i}.{name}.weight", (1 + 0.3 * rng.standard_normal(width)).astype(np.float32)
            )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
