"""Tiny random checkpoints of every family that the skeleton serves, as transformers makes them and as llama.cpp writes them.

Names of tensors in GGUF files come from the gguf library's own map of Hugging Face names.
"""

from __future__ import annotations

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from polydec.models.nets.hf import cache_keyword

SIZE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
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
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.5 + i for i in range(8)],
    "original_max_position_embeddings": 24,
}
PHI = {
    **LONG,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + i / 8 for i in range(6)],
    "long_factor": [1.5 + i for i in range(6)],
}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
# Of each: transformers' name, what its config says beside SIZE.
FAMILIES = {
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "linear": ("Llama", {"rope_parameters": LINEAR}),
    "longrope": ("Llama", {"rope_parameters": LONG}),
    "gemma": ("Gemma", {"head_dim": 32}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32,
            "sliding_window": 11,
            "query_pre_attn_scalar": 32,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "sliding_window": 11,
            "query_pre_attn_scalar": 32,
            "layer_types": WINDOWS,
            "rope_parameters": {
                "full_attention": {**LINEAR, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 11}),
    "phi4-mini": (
        "Phi3",
        {
            "rope_parameters": PHI,
            "original_max_position_embeddings": 24,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}),
    "olmo2": ("Olmo2", {}),
    "gpt-oss": (
        "GptOss",
        {
            **EXPERTS,
            "head_dim": 16,
            "sliding_window": 11,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "mixtral": ("Mixtral", EXPERTS),
    "qwen3-moe": (
        "Qwen3Moe",
        {**EXPERTS, "head_dim": 16, "moe_intermediate_size": 32, "mlp_only_layers": [1]},
    ),
    "qwen3-moe, shared out": (
        "Qwen3Moe",
        {**EXPERTS, "head_dim": 32, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
        },
    ),
}
BY_LENGTH = (
    "longrope",
    "phi4-mini",
)  # whose published rule turns a whole text anew when it grows long
ARCHITECTURES = {
    "llama": "LLAMA",
    "gemma": "GEMMA",
    "gemma2": "GEMMA2",
    "gemma3_text": "GEMMA3",
    "phi3": "PHI3",
    "smollm3": "SMOLLM3",
    "olmo2": "OLMO2",
    "granite": "GRANITE",
    "mixtral": "LLAMA",
    "qwen3_moe": "QWEN3MOE",
    "gpt_oss": "GPT_OSS",
}
PLUS = ("gemma", "gemma2", "gemma3_text")  # to whose norms llama.cpp's converter adds 1
PAIRED = (
    "llama",
    "mixtral",
    "smollm3",
    "granite",
)  # whose q and k it stores with turned partners side by side


def model_of(name: str, seed: int = 0, **changes):
    """transformers' model in float32, every parameter random, norms and biases too: ones and zeros hide faults."""
    family, more = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**{**SIZE, **more, **changes})
    config._attn_implementation = "eager"
    model = (
        getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)
        .eval()
        .to(torch.float32)
    )
    g = torch.Generator().manual_seed(seed)
    for key, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if "norm" in key:
            p.data = p.data.mean().round() + 0.3 * r
        elif p.ndim < 2 or key.endswith("bias"):
            p.data = 0.5 * r
        else:
            p.data = (
                r * p.shape[-1] ** -0.5 * (4 if family == "GptOss" and "gate_up" in key else 1)
            )  # its bound is 7
    return model


@torch.inference_mode()
def laws_of(model, name: str, ids: list[int]) -> torch.Tensor:
    """Logits of a text, [n, vocab]; token by token where the length of the text changes what was cached."""
    if name not in BY_LENGTH:
        return model(torch.tensor([ids])).logits[0]
    past = {cache_keyword(model): transformers.DynamicCache(config=model.config)}
    return torch.stack([model(torch.tensor([[x]]), **past).logits[0, 0] for x in ids])


def write(path, model, kind: Type = Type.F32, extra=lambda w: None):
    """The model as llama.cpp's converter writes it, without a tokenizer; extra: what else is written, given the writer."""
    c = model.config
    arch = getattr(gguf.MODEL_ARCH, ARCHITECTURES[c.model_type])
    names, heads = (
        gguf.get_tensor_name_map(arch, c.num_hidden_layers),
        (c.num_attention_heads, c.num_key_value_heads),
    )
    dense = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH.LLAMA, c.num_hidden_layers
    )  # of layers that are not experts
    w = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(heads[0])
    w.add_head_count_kv(heads[1])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    head = getattr(c, "head_dim", None) or c.hidden_size // heads[0]
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_vocab_size(c.vocab_size)
    _positions(w, c, head)
    _more(w, c)
    extra(w)
    for name, t in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        a = t.numpy() + (c.model_type in PLUS and name.endswith("norm.weight"))
        for which, n in zip("qk", heads):
            if f".{which}_proj." in name and c.model_type in PAIRED:
                a = a.reshape(n, 2, -1, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
        if name.endswith("self_attn.sinks"):
            name += ".weight"
        if ".experts." in name:
            _experts(w, names, name, a, kind, c.model_type == "gpt_oss")
            continue
        own, end = names.get_name(name, try_suffixes=(".weight", ".bias")), kind
        own = own or dense.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        _put(w, own, a, end)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _put(w, own, a, kind) -> None:
    if a.ndim < 2 or a.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = Type.F32
    w.add_tensor(own, a if kind == Type.F32 else gguf.quantize(a, kind), raw_dtype=kind)


def _experts(w, names, name, a, kind, mixed) -> None:
    """transformers 5 holds gate and up of all experts in one tensor, llama.cpp each kind in its own; gpt-oss (mixed)
    interleaves them, and its matrices are turned around."""
    stem, part = name.rsplit(".", 1)
    end, part = (".bias" if part.endswith("_bias") else ".weight"), part.removesuffix("_bias")
    if mixed and end == ".weight":
        a = np.ascontiguousarray(a.swapaxes(1, 2))
    if part == "gate_up_proj":
        inner = a.shape[1] // 2
        gate, up = (a[:, ::2], a[:, 1::2]) if mixed else (a[:, :inner], a[:, inner:])
        _put(w, names.get_name(stem + ".gate_proj") + end, np.ascontiguousarray(gate), kind)
        _put(w, names.get_name(stem + ".up_proj") + end, np.ascontiguousarray(up), kind)
    else:
        _put(w, names.get_name(f"{stem}.{part}") + end, a, kind)


def _positions(w, c, head: int) -> None:
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    kind = rope["rope_type"]
    if kind == "llama3":
        freqs = model_frequencies(c, "llama3")
        plain = rope["rope_theta"] ** -(torch.arange(0, head, 2) / head)
        w.add_tensor("rope_freqs.weight", (plain / freqs).float().numpy())
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        for which in ("long", "short"):
            w.add_tensor(
                f"rope_factors_{which}.weight", torch.tensor(rope[f"{which}_factor"]).numpy()
            )
        w.add_rope_scaling_attn_factors(model_frequencies(c, "longrope", magnitude=True))


def _more(w, c) -> None:
    if getattr(c, "sliding_window", None):
        w.add_sliding_window(c.sliding_window)
    if c.model_type == "gemma2":
        w.add_attn_logit_softcapping(c.attn_logit_softcapping)
        w.add_final_logit_softcapping(c.final_logit_softcapping)
    if c.model_type == "gemma3_text":
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c.layer_types])
    if c.model_type in ("mixtral", "qwen3_moe", "gpt_oss"):
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
    if c.model_type == "gpt_oss":
        w.add_expert_feed_forward_length(c.intermediate_size)
    if c.model_type == "qwen3_moe":
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
        w.add_expert_weights_norm(c.norm_topk_prob)
    if c.model_type == "granite":
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_logit_scale(c.logits_scaling)
        w.add_residual_scale(c.residual_multiplier)
        w.add_attention_scale(c.attention_multiplier)


def model_frequencies(c, kind: str, magnitude: bool = False):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return ROPE_INIT_FUNCTIONS[kind](c, "cpu")[magnitude]
