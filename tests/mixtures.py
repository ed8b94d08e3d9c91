"""A small random mixture of experts as a law, for tests of what moves its router."""

from __future__ import annotations

import torch

from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import ToyWords
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw

LAYERS, EXPERTS, WIDTH, SIZE = 2, 5, 32, 12


def mixture(seed: int = 0, size: int = SIZE, eos: int = 1, build=None) -> CausalLaw:
    """Mixtral's skeleton in float64: two layers of five experts, of which a row goes through two."""
    g = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=g) / shape[-1] ** 0.5

    config = {
        "model_type": "mixtral",
        "vocab_size": size,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
    }
    w = {
        "model.embed_tokens.weight": drawn(size, WIDTH) * 3,
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": drawn(size, WIDTH) * 2,
    }
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name, rows in (("q", 32), ("k", 16), ("v", 16), ("o", 32)):
            w[f"{at}self_attn.{name}_proj.weight"] = drawn(rows, WIDTH)
        for name in ("input", "post_attention"):
            w[f"{at}{name}_layernorm.weight"] = torch.ones(WIDTH)
        w[at + "block_sparse_moe.gate.weight"] = drawn(EXPERTS, WIDTH)
        for e in range(EXPERTS):
            for part in ("w1", "w2", "w3"):
                w[f"{at}block_sparse_moe.experts.{e}.{part}.weight"] = drawn(WIDTH, WIDTH) * 2
    network = (build or (lambda c, t: LlamaTransformer.build(c, t, dtype="float64")))(config, w)
    letters = [*"abcdefghij"[: size - 3], "\n"]
    return CausalLaw(
        network, TokenVocabulary(size, frozenset({eos}), words=ToyWords(("", *letters, "")))
    )
