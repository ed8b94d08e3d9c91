"""What families of models say of themselves, read into the mechanisms of one skeleton
(transformer.py).

A family is a row of data: where its norms stand, what its config.json leaves unsaid, how its files
fuse matrices. Nothing that computes knows a family's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import fields, mxfp4
from polydec.models.formats.rope import LAYER_KINDS, RotaryEmbedding
from polydec.models.formats.superlinear import SuperlinearRule

Windows = tuple[int | None, ...]


@dataclass(frozen=True)
class LayerNormNames:
    """Names of a layer's norms; None: there is none.

    Attributes:
        attention: The norm before attention.
        attended: The norm of what attention adds.
        mlp: The norm before the MLP.
        mlped: The norm of what the MLP adds.
        plus: What is added to their weights.
    """

    attention: str | None = "input_layernorm"
    attended: str | None = None
    mlp: str | None = "post_attention_layernorm"
    mlped: str | None = None
    plus: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The norms that there are."""
        return tuple(
            n for n in (self.attention, self.attended, self.mlp, self.mlped) if n is not None
        )


@dataclass(frozen=True)
class ExpertsConfig:
    """Layers whose MLP is a mixture of experts.

    Attributes:
        count: Number of experts.
        used: How many of them a row goes through.
        inner: Inner units of an expert.
        sparse: Of each layer whether its MLP is experts.
        share_used: Whether the weights of the experts that are used sum to one; else those of all
            do.
    """

    count: int
    used: int
    inner: int
    sparse: tuple[bool, ...]
    share_used: bool


@dataclass(frozen=True)
class TransformerConfig:
    """What a config.json says of the skeleton.

    Attributes:
        vocab: Size of the vocabulary.
        width: Size of the residual stream.
        layers: Number of layers.
        heads: Query heads.
        kv_heads: Key and value heads.
        head: Size of a head.
        inner: Inner units of an MLP.
        eps: Added to the norms' mean squares.
        windows: Of each layer the sliding window, in positions; None: it has none.
        causal: Whether a position sees nothing that follows it.
        tied: Whether the head's matrix is the embedding table; None: where there is no other.
        ropes: Rotary embeddings.
        turns: Of each layer which of `ropes` turns its queries and keys; None: none does.
        norms: Names of a layer's norms.
        act: Activation of the gate, "silu", "gelu" (by tanh) or "clamped" (transformer.py).
        scale: What scores are multiplied by.
        cap: Bound that scores near by tanh; None: there is none.
        final_cap: Bound that logits near by tanh; None: there is none.
        wide_norms: Whether q and k are normed over all heads together, if at all.
        embed_scale: What embeddings are multiplied by.
        residual: What a layer's additions are multiplied by.
        divide: What logits are divided by.
        experts: The mixture of experts; None: there is none.
        clamp: Slope and bound of the activation "clamped".
        sinks: Whether a score of each head that no value answers to takes its part of the weight.
        block: Of a model that is not causal, positions of a block: a position sees all of its own
            block and of those before. 0: everything.
        superlinear: Which keys a query searches for and reads; None: it reads all that it sees.
        sections: Of a rotary embedding that tells rows and columns of images, how many pairs of
            numbers turn by time, by rows and by columns, in turns; empty: all turn by one position.
    """

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
    ropes: tuple[RotaryEmbedding, ...]
    turns: tuple[int | None, ...]
    norms: LayerNormNames
    act: str
    scale: float
    cap: float | None = None
    final_cap: float | None = None
    wide_norms: bool = False
    embed_scale: float = 1.0
    residual: float = 1.0
    divide: float = 1.0
    experts: ExpertsConfig | None = None
    clamp: tuple[float, float] = (1.702, 7.0)
    sinks: bool = False
    block: int = 0
    superlinear: SuperlinearRule | None = None
    sections: tuple[int, ...] = ()

    def is_sparse(self, layer: int) -> bool:
        """Whether the MLP of this layer is experts."""
        return self.experts is not None and self.experts.sparse[layer]

    @property
    def context(self) -> int:
        """The longest sequence, in positions."""
        return min(r.context for r in self.ropes)

    @property
    def turned(self) -> int:
        """Dimensions of a head that rotary embedding turns."""
        return self.ropes[0].dim


ACTS = {
    "clamped": "clamped",
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
}


@dataclass(frozen=True)
class ModelFamily:
    """A family: how its configs and files are read.

    Attributes:
        windows: From a config, the sliding window of each layer.
        ropes: From a config, a head's width and a base, the rotary embeddings and of each layer
            which of them.
        theta: Base of the turns, where a config does not say it.
        norms: Names of a layer's norms.
        act: Activation, where a config does not say it.
        tied: Whether the head's matrix is the embedding table, where a config does not say it.
        head: Width of a head, where a config does not say it; None: by the weights.
        more: Further fields of `TransformerConfig`; None: none.
        fused: Whether files join q, k, v and gate, up.
        eps: What norms add to a mean square, where a config does not say it.
    """

    windows: Callable[[Mapping[str, Any]], Windows]
    ropes: Callable[
        [Mapping[str, Any], int, float], tuple[tuple[RotaryEmbedding, ...], tuple[int | None, ...]]
    ]
    theta: float = 10000.0
    norms: LayerNormNames = LayerNormNames()
    act: str = "silu"
    tied: bool | None = None
    head: int | None = None
    more: Callable[[Mapping[str, Any], int], dict[str, Any]] | None = None
    fused: bool = False
    eps: float = 1e-6


# ---------- windows


def _none(c: Mapping[str, Any]) -> Windows:
    return (None,) * c["num_hidden_layers"]


def _one_width(c: Mapping[str, Any]) -> Windows:
    return (c.get("sliding_window"),) * c["num_hidden_layers"]


def _qwen3_moe_windows(c: Mapping[str, Any]) -> Windows:
    # The default width counts only where windows are switched on.
    return (c.get("sliding_window", 4096) if c.get("use_sliding_window") else None,) * c[
        "num_hidden_layers"
    ]


def _smollm3(c: Mapping[str, Any]) -> Windows:
    if c.get("layer_types") is not None:
        return _by_type(c["layer_types"], c.get("sliding_window"))
    if c.get("use_sliding_window"):
        width = c.get("sliding_window")
    else:
        width = None
    # SmolLM3 has windows on the layers without rotary embedding.
    return tuple(None if k is not None else width for k in _turned(c))


def _mistral(c: Mapping[str, Any]) -> Windows:
    """All layers, unless the config lists those that have one."""
    width = c.get("sliding_window", 4096)
    if c.get("layer_types") is not None:
        return _by_type(c["layer_types"], width)
    return (width,) * c["num_hidden_layers"]


def _qwen(c: Mapping[str, Any]) -> Windows:
    if c.get("use_sliding_window"):
        width = c.get("sliding_window")
    else:
        width = None
    if c.get("layer_types") is not None:
        return _by_type(c["layer_types"], width)
    return tuple(
        # Qwen's first layers see everything, the later ones a window.
        width if i >= c.get("max_window_layers", 28) else None
        for i in range(c["num_hidden_layers"])
    )


def _gemma2(c: Mapping[str, Any]) -> Windows:
    return _every(c, 2)


def _gemma3(c: Mapping[str, Any]) -> Windows:
    return _every(c, c.get("sliding_window_pattern") or 6)


def _every(c: Mapping[str, Any], n: int) -> Windows:
    """Windows on all layers but every n-th, unless the config lists its layers."""
    n_layers = c["num_hidden_layers"]
    width = c.get("sliding_window", 4096)
    if c.get("layer_types") is not None:
        return _by_type(c["layer_types"], width)
    return tuple(width if (i + 1) % n else None for i in range(n_layers))


def _by_type(types: Any, width: int | None) -> Windows:
    # Without a width such layers would silently see everything.
    if width is None and "sliding_attention" in types:
        raise FileError(
            "layer_types has 'sliding_attention' and there is no window: sliding_window must be a number, and "
            "use_sliding_window true where there is one"
        )
    return tuple(width if t == "sliding_attention" else None for t in types)


# ---------- rotary embeddings


def _one_rope(
    c: Mapping[str, Any], head: int, theta: float
) -> tuple[tuple[RotaryEmbedding, ...], tuple[int | None, ...]]:
    return (RotaryEmbedding.of_config(c, head, theta),), (0,) * c["num_hidden_layers"]


def _phi3(
    c: Mapping[str, Any], head: int, theta: float
) -> tuple[tuple[RotaryEmbedding, ...], tuple[int | None, ...]]:
    """The only scaling is longrope, under names of its own."""
    c = dict(c)
    for name in ("rope_parameters", "rope_scaling"):
        if scaling := c.get(name):
            kind = scaling.get("rope_type") or scaling.get("type")
            # Phi-3 was trained on 4096 positions; its configs leave that out.
            if kind != "default":
                first = {"original_max_position_embeddings": 4096}
            else:
                first = {}
            c[name] = {
                **first,
                **scaling,
                "rope_type": "longrope" if kind in ("su", "yarn") else kind,
            }
    return _one_rope(c, head, theta)


def _turned(c: Mapping[str, Any]) -> tuple[int | None, ...]:
    """All layers but every fourth, unless the config lists those (1: its queries and keys turn)."""
    n = c["num_hidden_layers"]
    each = c.get("no_rope_layer_interval") or 4
    # The name misleads: an entry of 1 means that the layer does turn.
    turns = c.get("no_rope_layers") or [(i + 1) % each for i in range(n)]
    return tuple(0 if x else None for x in turns[:n])


def _skipping(
    c: Mapping[str, Any], head: int, theta: float
) -> tuple[tuple[RotaryEmbedding, ...], tuple[int | None, ...]]:
    return (RotaryEmbedding.of_config(c, head, theta),), _turned(c)


def _by_window(
    c: Mapping[str, Any], head: int, theta: float
) -> tuple[tuple[RotaryEmbedding, ...], tuple[int | None, ...]]:
    """Layers with a window have turns of their own. `rope_scaling` is of the others, in addition to
    their part of `rope_parameters`."""
    by_kind = c.get("rope_parameters") or {}
    scaling = c.get("rope_scaling") or {}
    if by_kind and not any(kind in by_kind for kind in LAYER_KINDS):
        raise FileError(
            f"rope_parameters has no {' and no '.join(LAYER_KINDS)}: the layers of this family turn in two ways"
        )
    # Two generations of configs: a field for each kind of layer, or one scaling for those without a
    # window and a base for the others.
    full = {**(by_kind.get("full_attention") or {}), **scaling}
    if "type" in scaling and "rope_type" not in full:
        raise FileError(
            "rope_scaling has a type and no rope_type: only rope_type is read in this family"
        )
    # Each kind of layer must see its own fields only.
    sides = {"rope_scaling": None, "original_max_position_embeddings": None}
    whole = {**c, **sides, "rope_parameters": full}
    local = {
        **c,
        **sides,
        "rope_parameters": by_kind.get("sliding_attention"),
        "rope_theta": c.get("rope_local_base_freq"),
    }
    ropes = RotaryEmbedding.of_config(whole, head, theta), RotaryEmbedding.of_config(local, head)
    return ropes, tuple(0 if w is None else 1 for w in _gemma3(c))


# ---------- further fields


def _gemma(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    return {"embed_scale": c["hidden_size"] ** 0.5}


def _gemma_capped(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    """Gemma 2 and 3: scores scaled by a number of the config, and bounds that Gemma 2 has unless it
    says otherwise."""
    if c["model_type"] == "gemma2":
        caps = (50.0, 30.0)
    else:
        caps = (None, None)
    return {
        # Gemma multiplies embeddings by the root of their width.
        "embed_scale": c["hidden_size"] ** 0.5,
        "scale": (c.get("query_pre_attn_scalar") or 256) ** -0.5,
        "cap": c.get("attn_logit_softcapping", caps[0]),
        "final_cap": c.get("final_logit_softcapping", caps[1]),
    }


def _olmo2(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    return {"wide_norms": True}


def _granite(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    factors = {
        ours: c.get(theirs)
        for ours, theirs in (
            ("scale", "attention_multiplier"),
            ("embed_scale", "embedding_multiplier"),
            ("residual", "residual_multiplier"),
            ("divide", "logits_scaling"),
        )
    }
    return {ours: 1.0 if x is None else float(x) for ours, x in factors.items()}


def _mixtral(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    return {
        "experts": _experts(c, 8, 2, c["intermediate_size"], (True,) * c["num_hidden_layers"], True)
    }


def _qwen3_moe(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    # Every n-th layer has experts, except for those that the config lists as dense.
    each = c.get("decoder_sparse_step") or 1
    dense = set(c.get("mlp_only_layers") or ())
    sparse = tuple(i not in dense and (i + 1) % each == 0 for i in range(c["num_hidden_layers"]))
    return {
        "experts": _experts(
            c, 128, 8, c.get("moe_intermediate_size") or 768, sparse, bool(c.get("norm_topk_prob"))
        )
    }


def _gpt_oss(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    return {
        "experts": _experts(
            c, 128, 4, c["intermediate_size"], (True,) * c["num_hidden_layers"], True
        ),
        "sinks": True,
        "clamp": (c.get("swiglu_alpha") or 1.702, c.get("swiglu_limit") or 7.0),
    }


def _superlinear(c: Mapping[str, Any], head: int) -> dict[str, Any]:
    if c.get("polydec_causal", True) is False:
        raise FileError(
            "superlinear searches what stands before a position: polydec_causal is false"
        )
    return {"superlinear": SuperlinearRule.of_config(c)}


def _yarn(
    c: Mapping[str, Any], head: int, theta: float
) -> tuple[tuple[RotaryEmbedding, ...], tuple[int | None, ...]]:
    """Scaled unless the config says otherwise."""
    scaling = {
        "rope_type": "yarn",
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    # Of gpt-oss, which was trained with yarn: that counts where a config says nothing.
    scaled = c.get("rope_parameters") or c.get("rope_scaling")
    return _one_rope(c if scaled else {**c, "rope_scaling": scaling}, head, theta)


def _experts(
    c: Mapping[str, Any], count: int, used: int, inner: int, sparse: tuple[bool, ...], share: bool
) -> ExpertsConfig:
    count = c.get("num_local_experts") or c.get("num_experts") or count
    used = c.get("num_experts_per_tok") or used
    if used > count:
        raise FileError(
            f"num_experts_per_tok is {used}: it must lie in 1 to {count}, the number of experts"
        )
    return ExpertsConfig(count, used, inner, sparse, share)


_AFTER = LayerNormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
_AROUND = LayerNormNames(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    1.0,
)

FAMILIES: Mapping[str, ModelFamily] = {
    "llama": ModelFamily(_none, _one_rope),
    "mistral": ModelFamily(_mistral, _one_rope),
    "qwen2": ModelFamily(_qwen, _one_rope),
    "qwen3": ModelFamily(_qwen, _one_rope),
    "gemma": ModelFamily(
        _none,
        _one_rope,
        norms=LayerNormNames(plus=1.0),
        act="gelu_pytorch_tanh",
        tied=True,
        head=256,
        more=_gemma,
    ),
    "gemma2": ModelFamily(
        _gemma2,
        _one_rope,
        norms=_AROUND,
        act="gelu_pytorch_tanh",
        tied=True,
        head=256,
        more=_gemma_capped,
    ),
    "gemma3_text": ModelFamily(
        _gemma3,
        _by_window,
        1e6,
        _AROUND,
        act="gelu_pytorch_tanh",
        tied=True,
        head=256,
        more=_gemma_capped,
    ),
    "phi3": ModelFamily(_one_width, _phi3, fused=True, eps=1e-5),
    "smollm3": ModelFamily(_smollm3, _skipping, 2e6, tied=True),
    "olmo2": ModelFamily(_none, _one_rope, norms=_AFTER, more=_olmo2, eps=1e-5),
    "granite": ModelFamily(_none, _one_rope, more=_granite),
    "mixtral": ModelFamily(_one_width, _one_rope, 1e6, more=_mixtral, fused=True, eps=1e-5),
    "qwen3_moe": ModelFamily(_qwen3_moe_windows, _one_rope, more=_qwen3_moe, fused=True),
    "superlinear": ModelFamily(_none, _one_rope, more=_superlinear),
    "gpt_oss": ModelFamily(
        _gemma2, _yarn, 150000.0, act="clamped", head=64, more=_gpt_oss, fused=True, eps=1e-5
    ),
}


def _head(c: Mapping[str, Any], weights: Mapping[str, Tensor]) -> int:
    """The width of a head where the config does not say it."""
    name = "model.layers.0.self_attn.q_proj.weight"
    if name in weights:
        return max(1, fields.shape_of(weights, name)[0] // c["num_attention_heads"])
    return max(1, c["hidden_size"] // c["num_attention_heads"])


def read_architecture(
    c: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[TransformerConfig, Mapping[str, Tensor]]:
    """Read a config.json and its tensors as the skeleton has them.

    Names and shapes are compared before anything is read or made room for.

    Args:
        c: The config.
        weights: The tensors by name; a lazy mapping will do.

    Returns:
        The config of the skeleton, and the weights under the skeleton's names: fused ones are cut.

    Raises:
        FileError: The config is of another family, lacks a field or does not fit the weights.
    """
    kind = c.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise FileError(f"model_type is {kind!r}: this network runs {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    fields.check_config(c, weights)
    if family.act == "clamped":
        act = family.act
    else:
        # Gemma's newer name of the field counts first.
        act = c.get("hidden_activation") or c.get("hidden_act") or family.act
    if act not in ACTS:
        raise FileError(f"hidden_act is {act!r}: this network has {', '.join(ACTS)}")
    if c.get("use_bidirectional_attention"):
        raise FileError("use_bidirectional_attention is set: of this family causal models are run")
    # Some checkpoints of these families were made bidirectional: run causally, they would answer
    # without an error, and wrongly.
    named = next(
        (x for x in c.get("architectures") or () if "bidirectional" in str(x).lower()), None
    )
    if named is not None or c.get("is_causal") is False:
        raise FileError(
            f"{f'architectures names {named}' if named else 'is_causal is false'}: every position of that network sees all "
            "others, and of this family causal models are run"
        )
    if c.get("quantization_config") and not mxfp4.is_meant(c["quantization_config"]):
        raise FileError(
            "quantization_config is set: this network reads plain float weights only (or a GGUF file)"
        )
    # Without these nothing can be checked; other fields have defaults.
    needed = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    missing = [k for k in needed if c.get(k) is None]
    if missing:
        raise FileError(f"config lacks {', '.join(missing)}")
    heads = c["num_attention_heads"]
    kv_heads = c.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise FileError(
            f"num_key_value_heads is {kv_heads}: it must divide num_attention_heads, {heads}"
        )
    # The width of a head: the config, the family's custom, or the shape of the first query matrix.
    head = c.get("head_dim") or family.head or _head(c, weights)
    if head % 2:
        raise FileError(
            f"the heads are {head} wide: rotary embedding turns pairs, so that it must be an even number"
        )
    causal = c.get("polydec_causal", True)
    windows = family.windows(c)
    if not causal and any(windows):
        raise FileError(
            "sliding_window is set in a bidirectional model: only causal ones can have it"
        )
    ropes, turns = family.ropes(c, head, family.theta)
    # Scores are divided by the root of the head's size, unless the family has another scale.
    more = {"scale": head**-0.5, **(family.more(c, head) if family.more else {})}
    config = TransformerConfig(
        c["vocab_size"],
        c["hidden_size"],
        c["num_hidden_layers"],
        heads,
        kv_heads,
        head,
        c["intermediate_size"],
        c.get("rms_norm_eps", family.eps),
        windows,
        causal,
        c.get("tie_word_embeddings", family.tied),
        ropes,
        turns,
        family.norms,
        ACTS[act],
        block=0 if causal else c.get("polydec_block") or 0,
        sections=_sections(c, ropes),
        **more,
    )
    # Cut before shapes are checked: the skeleton asks for q, k, v, gate and up by themselves.
    if family.fused:
        weights = mxfp4.split_fused_experts(weights, config.layers)
        weights = SplitWeights(weights, _joined(config, weights))
    fields.check_shapes(config, weights)
    return config, weights


def _sections(c: Mapping[str, Any], ropes: tuple[RotaryEmbedding, ...]) -> tuple[int, ...]:
    """How many pairs of numbers turn by each kind of position. Raises FileError where these are not
    all that turn."""
    # Pairs that no section has would not turn at all.
    sections = tuple(c.get("polydec_sections") or ())
    if sections and any(2 * sum(sections) != rope.dim for rope in ropes):
        raise FileError(
            f"mrope_section is {list(sections)}: their sum must be half of the {ropes[0].dim} dimensions that turn"
        )
    return sections


# ---------- files that join matrices


@dataclass(frozen=True)
class TensorPiece:
    """Rows of a tensor of the file, whose leading sides count as one; of a vector, its numbers.

    Attributes:
        name: The tensor.
        first: The first row.
        stop: The row after the last one.
    """

    name: str
    first: int
    stop: int


class SplitWeights(Mapping[str, Tensor]):
    """Weights of which some are pieces of larger tensors.

    Attributes:
        source: The tensors of the file.
        pieces: By name, the pieces.
    """

    def __init__(self, source: Mapping[str, Tensor], pieces: Mapping[str, TensorPiece]) -> None:
        self.source = source
        self.pieces = pieces
        for p in pieces.values():
            shape = fields.shape_of(source, p.name)
            # Checked once here, so that no piece reaches beyond its tensor later.
            if p.stop > math.prod(shape[:-1] if len(shape) > 1 else shape):
                raise FileError(
                    f"{p.name} has shape {shape}: the config asks for {p.stop} rows or more"
                )
        # A tensor that is cut up is not listed itself.
        joined = {p.name for p in pieces.values()}
        self._names = {
            **dict.fromkeys(name for name in source if name not in joined),
            **dict.fromkeys(pieces),
        }

    def __getitem__(self, name: str) -> Tensor:
        piece = self.pieces.get(name)
        if piece is None:
            return self.source[name]
        # Without reading all of it, where the file allows that.
        rows = getattr(self.source, "tensor_rows", None)
        if rows is not None:
            return _flat(name, rows(piece.name, piece.first, piece.stop))
        t = self.source[piece.name]
        return _flat(name, (t if t.ndim < 2 else t.flatten(0, -2))[piece.first : piece.stop])

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        piece = self.pieces.get(name)
        if piece is None:
            return fields.shape_of(self.source, name)
        whole = fields.shape_of(self.source, piece.name)
        if name.endswith(".bias") and len(whole) > 1:
            return whole[-1:]
        if len(whole) > 1:
            return (piece.stop - piece.first, *whole[-1:])
        return (piece.stop - piece.first,)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _flat(name: str, t: Tensor) -> Tensor:
    """A bias is a vector, also where it is a row of a matrix."""
    if name.endswith(".bias"):
        return t.flatten()
    return t


def _joined(c: TransformerConfig, weights: Mapping[str, Tensor]) -> dict[str, TensorPiece]:
    """q, k, v out of qkv_proj, gate and up out of gate_up_proj, where a file joins them."""
    out: dict[str, TensorPiece] = {}
    q = c.heads * c.head
    kv = c.kv_heads * c.head
    for i in range(c.layers):
        for at, whole, parts in (
            (f"model.layers.{i}.self_attn.", "qkv_proj", {"q_proj": q, "k_proj": kv, "v_proj": kv}),
            (f"model.layers.{i}.mlp.", "gate_up_proj", {"gate_proj": c.inner, "up_proj": c.inner}),
        ):
            for end in (".weight", ".bias"):
                name = at + whole + end
                row = 0
                if name not in weights:
                    continue
                # The pieces must use up the fused matrix, or rows would be cut at wrong places.
                if (rows := fields.shape_of(weights, name)[0]) != sum(parts.values()):
                    raise FileError(
                        f"{name} has {rows} rows: the config asks for {sum(parts.values())}"
                    )
                for part, size in parts.items():
                    out[at + part + end] = TensorPiece(name, row, row + size)
                    row += size
        if c.is_sparse(i):
            _expert_pieces(c, weights, f"model.layers.{i}.", out)
    return out


def _expert_pieces(
    c: TransformerConfig, weights: Mapping[str, Tensor], at: str, out: dict[str, TensorPiece]
) -> None:
    """Router and experts under one family's names.

    Files have each expert's matrices by themselves, all of a kind in one, or gate and up of all in
    one.
    """
    assert c.experts is not None
    own = at + "mlp."
    count = c.experts.count
    inner = c.experts.inner
    mixtral = at + "block_sparse_moe."
    router = own + "gate.weight"
    # Mixtral and gpt-oss have other names for the router.
    for theirs in (mixtral + "gate", own + "router"):
        if theirs + ".weight" in weights:
            router = theirs + ".weight"
            ends = (end for end in (".weight", ".bias") if theirs + end in weights)
            out |= {own + "gate" + end: TensorPiece(theirs + end, 0, count) for end in ends}
    # The router's shape says how many experts there are, before any of them is looked for.
    if (shape := fields.shape_of(weights, router)) != (count, c.width):
        raise FileError(f"{router} has shape {shape}: the config asks for {(count, c.width)}")
    for part, old, n in (
        ("gate_proj", "w1", inner),
        ("up_proj", "w3", inner),
        ("down_proj", "w2", c.width),
    ):
        stacked = f"{own}experts.{part}"
        joined = f"{own}experts.gate_up_proj"
        for e in range(count):
            name = f"{own}experts.{e}.{part}.weight"
            # Each expert's matrices by themselves, under Mixtral's names.
            if (alone := f"{mixtral}experts.{e}.{old}.weight") in weights:
                out[name] = TensorPiece(alone, 0, n)
            elif (
                whole := next((x for x in (f"{stacked}.weight", stacked) if x in weights), None)
            ) is not None:
                out[name] = TensorPiece(whole, e * n, (e + 1) * n)
            # Gate and up of all experts in one tensor.
            elif joined in weights and part != "down_proj":
                # Of each expert gate, then up.
                first = (2 * e + (part == "up_proj")) * n
                out[name] = TensorPiece(joined, first, first + n)
            if stacked + ".bias" in weights:
                out[f"{own}experts.{e}.{part}.bias"] = TensorPiece(stacked + ".bias", e, e + 1)
