"""What families of models say of themselves, read into the mechanisms of one skeleton (transformer.py).

A family is a row of data: where its norms stand, what its config.json leaves unsaid, how its files fuse matrices. Nothing
that computes knows a family's name.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polydec.models import fields
from polydec.models.rope import Rope

Windows = tuple[int | None, ...]


@dataclass(frozen=True)
class Norms:
    """Names of a layer's norms: before attention, of what attention adds, before the MLP, of what that adds (None: there is
    none). plus: what is added to their weights."""
    attention: str | None = "input_layernorm"
    attended: str | None = None
    mlp: str | None = "post_attention_layernorm"
    mlped: str | None = None
    plus: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n in (self.attention, self.attended, self.mlp, self.mlped) if n is not None)


@dataclass(frozen=True)
class Config:
    """What a config.json says of the skeleton. Of each layer: windows, the sliding window (None: it has none); turns, which
    of `ropes` turns its queries and keys (None: none does). scale: what scores are multiplied by; cap and final_cap: bounds
    that scores and logits near by tanh, None: none; wide_norms: q and k are normed over all heads together, if at all;
    embed_scale, residual: what embeddings, and what a layer adds, are multiplied by; divide: what logits are divided by;
    act: "silu" or "gelu" (by tanh), of the gate; block: of a model that is not causal, in blocks of how many positions it sees
    (all of its own and of those before; 0: everything)."""
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    eps: float
    windows: Windows
    causal: bool
    tied: bool | None
    ropes: tuple[Rope, ...]
    turns: tuple[int | None, ...]
    norms: Norms
    act: str
    scale: float
    cap: float | None = None
    final_cap: float | None = None
    wide_norms: bool = False
    embed_scale: float = 1.0
    residual: float = 1.0
    divide: float = 1.0
    block: int = 0

    @property
    def context(self) -> int:
        """The longest sequence, in positions."""
        return min(r.context for r in self.ropes)

    @property
    def turned(self) -> int:
        """Dimensions of a head that rotary embedding turns."""
        return self.ropes[0].dim


ACTS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu"}


@dataclass(frozen=True)
class Family:
    """windows: from a config, of each layer; ropes: from a config and a head's width, the rotary embeddings and of each layer
    which of them; theta: the base where the config names none; tied: whether the head is the embedding table where the config
    does not say; act: the activation where the config names none; more: further fields of Config; fused: whether files join
    q, k, v and gate, up."""
    windows: Callable[[Mapping[str, Any]], Windows]
    ropes: Callable[[Mapping[str, Any], int, float], tuple[tuple[Rope, ...], tuple[int | None, ...]]]
    theta: float = 10000.0
    norms: Norms = Norms()
    act: str = "silu"
    more: Callable[[Mapping[str, Any], int], dict[str, Any]] | None = None
    fused: bool = False


# ---------- windows

def _none(c: Mapping[str, Any]) -> Windows:
    return (None,) * c["num_hidden_layers"]


def _mistral(c: Mapping[str, Any]) -> Windows:
    return (c.get("sliding_window", 4096),) * c["num_hidden_layers"]


def _qwen(c: Mapping[str, Any]) -> Windows:
    width = c.get("sliding_window") if c.get("use_sliding_window") else None
    if c.get("layer_types") is not None:
        return _by_type(c["layer_types"], width)
    return tuple(width if i >= c.get("max_window_layers", 28) else None for i in range(c["num_hidden_layers"]))


def _by_type(types: Any, width: int | None) -> Windows:
    return tuple(width if t == "sliding_attention" else None for t in types)


# ---------- rotary embeddings

def _one(c: Mapping[str, Any], head: int, theta: float) -> tuple[tuple[Rope, ...], tuple[int | None, ...]]:
    return (Rope.of(c, head, theta),), (0,) * c["num_hidden_layers"]


FAMILIES: Mapping[str, Family] = {
    "llama": Family(_none, _one), "mistral": Family(_mistral, _one), "qwen2": Family(_qwen, _one), "qwen3": Family(_qwen, _one)}


def _head(c: Mapping[str, Any], weights: Mapping[str, Tensor]) -> int:
    """The width of a head where the config does not say it."""
    name = "model.layers.0.self_attn.q_proj.weight"
    if name in weights:
        return max(1, fields.shape_of(weights, name)[0] // c["num_attention_heads"])
    return max(1, c["hidden_size"] // c["num_attention_heads"])


def read(c: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """A config.json and its tensors as the skeleton has them. Raises ValueError of one sentence where the config is of another
    family, lacks a field or does not fit the weights: told by names and shapes, before anything is read or made room for."""
    kind = c.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"model_type is {kind!r}: this network runs {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    fields.check_config(c, weights)
    act = c.get("hidden_activation") or c.get("hidden_act") or family.act
    if act not in ACTS:
        raise ValueError(f"hidden_act is {act!r}: this network has {', '.join(ACTS)}")
    if c.get("quantization_config"):
        raise ValueError("quantization_config is set: this network reads plain float weights only (or a GGUF file)")
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
              "max_position_embeddings")
    missing = [k for k in needed if c.get(k) is None]
    if missing:
        raise ValueError(f"config lacks {', '.join(missing)}")
    heads = c["num_attention_heads"]
    kv_heads = c.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ValueError(f"num_key_value_heads is {kv_heads}: it must divide num_attention_heads, {heads}")
    head = c.get("head_dim") or _head(c, weights)
    if head % 2:
        raise ValueError(f"the heads are {head} wide: rotary embedding turns pairs, so that it must be an even number")
    causal, windows = c.get("polydec_causal", True), family.windows(c)
    if not causal and any(windows):
        raise ValueError("sliding_window is set in a bidirectional model: only causal ones can have it")
    ropes, turns = family.ropes(c, head, family.theta)
    more = {"scale": head ** -0.5, **(family.more(c, head) if family.more else {})}
    config = Config(c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], heads, kv_heads, head, c["intermediate_size"],
                    c.get("rms_norm_eps", 1e-6), windows, causal, c.get("tie_word_embeddings"), ropes, turns, family.norms,
                    ACTS[act], block=0 if causal else c.get("polydec_block") or 0, **more)
    fields.check_shapes(config, weights)
    return config, weights
