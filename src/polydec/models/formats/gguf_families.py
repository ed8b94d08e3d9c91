"""What a GGUF file says of each architecture: its metadata as a config.json, its tensors' names as
Hugging Face has them.

Keys and names are llama.cpp's. What it knows of an architecture without a key (a pattern of
windows, a base) stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from polydec.base.errors import FileError

Config = dict[str, Any]


class GGUFFile(Protocol):
    """What is asked of a GGUF file (gguf.py)."""

    @property
    def path(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, Any]: ...
    @property
    def entries(self) -> Mapping[str, Any]: ...
    def metadata_count(self, key: str, *default: int) -> int:
        """A count among the metadata.

        Args:
            key: Name of the field.
            default: What counts where it is missing; at most one.

        Returns:
            The count, at least 1.

        Raises:
            FileError: It is missing without a default, or no count.
        """
        ...

    def metadata_real(self, key: str, *default: float) -> float:
        """A number above 0 among the metadata.

        Args:
            key: Name of the field.
            default: What counts where it is missing; at most one.

        Returns:
            The number.

        Raises:
            FileError: It is missing without a default, or not above 0.
        """
        ...

    def stored_tensor(self, own: str) -> Tensor:
        """A tensor by the file's own name, dequantised."""
        ...


TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are part of the configuration."""


@dataclass(frozen=True)
class GGUFArchitecture:
    """How files of an architecture are read.

    Attributes:
        model: Hugging Face's model_type.
        paired: Whether llama.cpp stores the rows of q and k with turned partners side by side.
        names: Names of a block's tensors, beyond the usual ones.
        plus: What its converter adds to norms.
        more: From the file and the usual config, what else the config says; None: nothing.
    """

    model: str
    paired: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    plus: float = 0.0
    more: Callable[[GGUFFile, Config], Config] | None = None

    def tensor_name(self, block: str) -> str | None:
        """Hugging Face's name of a block's tensor."""
        return self.names.get(block) or _BLOCK.get(block)


_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _pattern(file: GGUFFile, config: Config, every: int) -> list[str]:
    """Which layers have the window: all but every n-th, or as the file lists them."""
    pattern = file.fields.get(f"{file.architecture}.attention.sliding_window_pattern", every)
    n = config["num_hidden_layers"]
    if isinstance(pattern, list):
        if len(pattern) != n:
            raise FileError(
                f"{file.path} has a sliding_window_pattern of {len(pattern)} layers: there are {n}"
            )
        return ["sliding_attention" if x else "full_attention" for x in pattern]
    if type(pattern) is not int or pattern < 1:
        raise FileError(
            f"{file.path} has sliding_window_pattern = {pattern!r:.40}: a number from 1 on, or one a layer, is legal"
        )
    # A number n: every n-th layer sees everything.
    return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(n)]


def _granite(file: GGUFFile, config: Config) -> Config:
    """Multipliers. A file without one means the usual scale of scores, and 1 otherwise."""
    return {
        "embedding_multiplier": file.metadata_real("granite.embedding_scale", 1.0),
        "residual_multiplier": file.metadata_real("granite.residual_scale", 1.0),
        "logits_scaling": file.metadata_real("granite.logit_scale", 1.0),
        "attention_multiplier": file.metadata_real(
            "granite.attention.scale", config["head_dim"] ** -0.5
        ),
    }


def _llama(file: GGUFFile, config: Config) -> Config:
    """Of several experts it is Mixtral."""
    if not file.fields.get("llama.expert_count"):
        return {}
    return {"model_type": "mixtral", **_experts(file)}


def _qwen3_moe(file: GGUFFile, config: Config) -> Config:
    # No key lists the layers without experts: they are those without a router.
    dense = [
        i
        for i in range(config["num_hidden_layers"])
        if f"blk.{i}.ffn_gate_inp.weight" not in file.entries
    ]
    inner = file.metadata_count("qwen3moe.expert_feed_forward_length")
    return {
        **_experts(file),
        "mlp_only_layers": dense,
        "moe_intermediate_size": inner,
        "norm_topk_prob": file.fields.get("qwen3moe.expert_weights_norm", True),
    }


def _gpt_oss(file: GGUFFile, config: Config) -> Config:
    scaling = config.get("rope_scaling")
    return {
        **_experts(file),
        "layer_types": _pattern(file, config, 2),
        "intermediate_size": file.metadata_count(
            "gpt-oss.expert_feed_forward_length", config["intermediate_size"]
        ),
        "rope_scaling": None if scaling is None else {**scaling, "truncate": False},
    }  # as the model was trained


def _experts(file: GGUFFile) -> Config:
    arch = file.architecture
    return {
        "num_local_experts": file.metadata_count(f"{arch}.expert_count"),
        "num_experts_per_tok": file.metadata_count(f"{arch}.expert_used_count"),
    }


def _gemma2(file: GGUFFile, config: Config) -> Config:
    wide = (
        config["hidden_size"] // config["num_attention_heads"]
    )  # which the largest scales by, no key says so
    return {
        "sliding_window": config.get("sliding_window", 4096),
        "layer_types": _pattern(file, config, 2),
        "query_pre_attn_scalar": wide if config["num_hidden_layers"] == 46 else config["head_dim"],
        "attn_logit_softcapping": file.metadata_real("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.metadata_real("gemma2.final_logit_softcapping", 30.0),
    }


def _gemma3(file: GGUFFile, config: Config) -> Config:
    wide = config["hidden_size"] // config["num_attention_heads"]
    window = config.get("sliding_window")
    cap = "gemma3.final_logit_softcapping"
    return {
        "sliding_window": window,
        "layer_types": _pattern(file, config, 6 if window else 1),
        "query_pre_attn_scalar": wide if config["num_hidden_layers"] == 62 else config["head_dim"],
        # Gemma 3 has no bound unless the file says one.
        "final_logit_softcapping": file.metadata_real(cap) if file.fields.get(cap) else None,
        "rope_local_base_freq": file.metadata_real("gemma3.rope.freq_base_swa", 10000.0),
    }


ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture("llama", paired=True, names=_EXPERTS, more=_llama),
    "qwen2": GGUFArchitecture("qwen2"),
    "qwen3": GGUFArchitecture("qwen3"),
    "gemma": GGUFArchitecture("gemma", plus=1.0),
    "gemma2": GGUFArchitecture("gemma2", names=_AROUND, plus=1.0, more=_gemma2),
    "gemma3": GGUFArchitecture("gemma3_text", names=_AROUND, plus=1.0, more=_gemma3),
    "phi3": GGUFArchitecture(
        "phi3", names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
    ),
    "smollm3": GGUFArchitecture("smollm3", paired=True),
    "olmo2": GGUFArchitecture("olmo2", names=_AROUND),
    "qwen3moe": GGUFArchitecture("qwen3_moe", names=_EXPERTS, more=_qwen3_moe),
    "gpt-oss": GGUFArchitecture(
        "gpt_oss",
        names={
            **_EXPERTS,
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
        },
        more=_gpt_oss,
    ),
    "granite": GGUFArchitecture("granite", paired=True, more=_granite),
}


def config_of(file: GGUFFile) -> Config:
    """The dict of a config.json.

    Raises:
        FileError: The file lacks a field, or has one that is not served.
    """
    arch = file.architecture
    # Other kinds of files, such as adapters and projectors, have the same header and no embeddings.
    embedding = file.entries.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise FileError(
            f"{file.path} holds no weights of a language model: the tensor token_embd.weight is missing"
        )
    number = file.metadata_count
    real = file.metadata_real
    heads = number(f"{arch}.attention.head_count")
    width = number(f"{arch}.embedding_length")
    layers = number(f"{arch}.block_count")
    # Lists of one entry a layer are made below: a hostile number must not get that far.
    if layers > len(file.entries):
        raise FileError(
            f"{file.path} has {arch}.block_count = {layers}: it holds {len(file.entries)} tensors in all"
        )
    # A head's width is a field in newer files; older ones divide.
    head = number(f"{arch}.attention.key_length", width // max(heads, 1))
    turned = number(f"{arch}.rope.dimension_count", head)
    config = {
        "model_type": ARCHITECTURES[arch].model,
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": number(f"{arch}.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": number(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": number(f"{arch}.context_length"),
        "rms_norm_eps": real(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": real(f"{arch}.rope.freq_base", 10000.0),
        "attention_bias": "blk.0.attn_q.bias" in file.entries,
        "tie_word_embeddings": "output.weight" not in file.entries,
        "bos_token_id": file.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.fields.get("tokenizer.ggml.eos_token_id"),
    }
    # Some families turn a part of each head only.
    if turned != head:
        config["partial_rotary_factor"] = turned / head
    if file.fields.get(f"{arch}.attention.sliding_window"):
        config["sliding_window"] = number(f"{arch}.attention.sliding_window")
    if (scaling := _scaling(file, arch, config)) is not None:
        config["rope_scaling"] = scaling
    more = ARCHITECTURES[arch].more
    if more is None:
        return config
    return {**config, **more(file, config)}


# ---------- rotary scalings


def _scaling(file: GGUFFile, arch: str, config: Config) -> Config | None:
    kind = file.fields.get(f"{arch}.rope.scaling.type", "none")
    key = f"{arch}.rope.scaling"
    turned = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    # Tables of divisors say more than the scaling's type, which converters leave out then.
    if "rope_freqs.weight" in file.entries:
        return _from_table(file, config, turned)
    if "rope_factors_long.weight" in file.entries:
        short, long = (
            _table(file, f"rope_factors_{which}.weight", turned) for which in ("short", "long")
        )
        return {
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "attention_factor": file.metadata_real(f"{key}.attn_factor", 1.0),
            "original_max_position_embeddings": file.metadata_count(
                f"{key}.original_context_length", config["max_position_embeddings"]
            ),
        }
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise FileError(
            f"{file.path} has {key}.type = {kind!r:.80}: linear and yarn are served, and tables of divisors"
        )
    scaling = {"rope_type": kind, "factor": file.metadata_real(f"{key}.factor")}
    if kind == "yarn":
        if file.fields.get(f"{key}.yarn_log_multiplier"):
            raise FileError(f"{file.path} has {key}.yarn_log_multiplier: yarn is served without it")
        scaling["original_max_position_embeddings"] = file.metadata_count(
            f"{key}.original_context_length"
        )
        for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if f"{key}.{theirs}" in file.fields:
                scaling[ours] = file.metadata_real(f"{key}.{theirs}")
        # Yarn's own magnitude is 0.1 ln(factor) + 1; the file's factor comes on top of it, Hugging
        # Face's replaces it.
        for theirs in ("attn_factor", "yarn_attn_factor"):  # on top of the usual magnitude
            if f"{key}.{theirs}" in file.fields:
                scaling["attention_factor"] = file.metadata_real(f"{key}.{theirs}") * (
                    0.1 * math.log(max(scaling["factor"], 1.0)) + 1.0
                )
    return scaling


def _table(file: GGUFFile, name: str, turned: int) -> list[float]:
    """One divisor for each pair of turned dimensions."""
    if name not in file.entries:
        raise FileError(
            f"{file.path} lacks the tensor {name}, which belongs to the other rope_factors"
        )
    divisor = file.stored_tensor(name).flatten().tolist()
    if 2 * len(divisor) > turned or not all(0 < x < 1e12 for x in divisor):
        raise FileError(
            f"{file.path} has {name} of {len(divisor)} numbers: at most one for each pair of a "
            f"head's {turned} dimensions is legal, all above 0"
        )
    return divisor


def _from_table(file: GGUFFile, config: Config, turned: int) -> Config:
    divisor = _table(file, "rope_freqs.weight", turned)
    # The table says its own factor; the other numbers are those of Llama 3.1, and the comparison
    # tells whether they are right.
    llama3 = {
        "rope_type": "llama3",
        "factor": round(max(divisor), 4),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if np.allclose(
        divisor, _llama3_divisors(llama3, config["rope_theta"], 2 * len(divisor)), rtol=1e-4
    ):
        return llama3
    # any other table: the scaling that takes one divisor a frequency
    return {
        "rope_type": "longrope",
        "short_factor": divisor,
        "long_factor": divisor,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _llama3_divisors(scaling: Mapping[str, Any], theta: float, dims: int) -> np.ndarray:
    """By what Llama 3.1 divides each rotary frequency: 1 where its wave is short, `factor` where it
    is long."""
    wave = 2 * np.pi * theta ** (np.arange(0, dims, 2) / dims)
    low = scaling["low_freq_factor"]
    high = scaling["high_freq_factor"]
    smooth = np.clip(
        (scaling["original_max_position_embeddings"] / wave - low) / (high - low), 0, 1
    )
    return 1 / ((1 - smooth) / scaling["factor"] + smooth)
