"""What model files may say: the types and ranges of every field that is read, one class a kind of
file.

Fields beyond these are legal and stay unread. `edge.validate_record` turns a field that is not as
written here into one sentence.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from polydec.base.errors import FileError
from polydec.models.formats import edge

# Bounds are far above any real model's: they keep a hostile number from reaching an allocation, or
# an overflow.
Count = Annotated[int, Field(ge=1, le=1 << 24)]
Positions = Annotated[int, Field(ge=1, le=(1 << 31) - 1)]
Id = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
Real = Annotated[float, Field(ge=-1e30, le=1e30)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Factor = Annotated[float, Field(ge=1, le=1e6)]
# Many published files have null where they mean "as usual".
Flag = bool | None


class StrictFields(BaseModel):
    """true is no number, "3" neither, and no number is NaN or infinite."""

    # What checks a record is made when one is first read: there are many kinds, and a model's files
    # hold a few.
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class RopeFields(StrictFields):
    """rope_parameters and rope_scaling of a config.json."""

    # Which scaling; the older name is `type`.
    rope_type: str | None = None
    type: str | None = None
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    # Of most scalings; the next two are Llama 3's.
    factor: Factor | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Annotated[int, Field(ge=2, le=(1 << 31) - 1)] | None = None
    # Of yarn.
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: Annotated[float, Field(ge=0, le=1e6)] | None = None
    mscale_all_dim: Annotated[float, Field(ge=0, le=1e6)] | None = None
    attention_factor: Annotated[float, Field(gt=0, le=1e6)] | None = None
    truncate: Flag = None
    # Of longrope: one divisor a pair of dimensions.
    short_factor: list[Positive] | None = None
    long_factor: list[Positive] | None = None


class RopesFields(RopeFields):
    """rope_parameters that differ between kinds of layers."""

    full_attention: RopeFields | None = None
    sliding_attention: RopeFields | None = None


class SuperlinearFields(StrictFields):
    """superlinear of a config.json: see superlinear.py."""

    spans: Annotated[int, Field(ge=1, le=64)] = 3
    near: Annotated[int, Field(ge=0, le=1024)] = 0
    # Powers are bounded away from 0, where one over them has no end.
    search_power: Annotated[float, Field(ge=0.25, le=1)] = 0.5
    span_power: Annotated[float, Field(ge=0, le=1)] = 0.5
    behind: Annotated[float, Field(ge=0, le=64)] = 2.0
    ahead: Annotated[float, Field(ge=0, le=64)] = 0.0
    search_scale: Annotated[float, Field(ge=0, le=1e6)] = 1.0


class LlamaConfigFields(StrictFields):
    """config.json of the Llama skeleton and the families that are read as it is."""

    # Sizes. They may be missing here: who needs one says so by its name.
    vocab_size: Count | None = None
    hidden_size: Count | None = None
    num_hidden_layers: Annotated[int, Field(ge=1, le=4096)] | None = None
    num_attention_heads: Annotated[int, Field(ge=1, le=4096)] | None = None
    num_key_value_heads: Annotated[int, Field(ge=1, le=4096)] | None = None
    intermediate_size: Count | None = None
    max_position_embeddings: Positions | None = None
    head_dim: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] | None = None
    rms_norm_eps: Annotated[float, Field(ge=0, le=1)] = 1e-6
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    original_max_position_embeddings: Annotated[int, Field(ge=2, le=(1 << 31) - 1)] | None = None
    # The activation, under its two names.
    hidden_act: str | None = None
    hidden_activation: str | None = None
    # Windows: one width, and which layers have it, in the ways of Qwen and of newer configs.
    sliding_window: Positions | None = None
    use_sliding_window: Flag = None
    max_window_layers: Annotated[int, Field(ge=0, le=1 << 24)] = 28
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    tie_word_embeddings: Flag = None
    # Ours: bidirectional networks, and blocks of them.
    polydec_causal: bool = True
    polydec_block: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    # Ours: sections of a rotary embedding that tells rows and columns of images.
    polydec_sections: (
        Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=64)] | None
    ) = None
    # Gemma 2 and 3: every n-th layer without a window, the scale of scores, bounds of scores and
    # logits, the base of layers with a window.
    sliding_window_pattern: Annotated[int, Field(ge=1, le=4096)] | None = None
    query_pre_attn_scalar: Positive | None = None
    attn_logit_softcapping: Positive | None = None
    final_logit_softcapping: Positive | None = None
    rope_local_base_freq: Annotated[float, Field(gt=1, le=1e12)] | None = None
    use_bidirectional_attention: Flag = None
    # SmolLM3: layers without rotary embedding.
    no_rope_layers: list[Literal[0, 1]] | None = None
    no_rope_layer_interval: Annotated[int, Field(ge=1, le=4096)] | None = None
    # Mixtures of experts: Mixtral's and gpt-oss's names, then Qwen3's.
    num_local_experts: Annotated[int, Field(ge=1, le=4096)] | None = None
    num_experts: Annotated[int, Field(ge=1, le=4096)] | None = None
    num_experts_per_tok: Annotated[int, Field(ge=1, le=4096)] | None = None
    moe_intermediate_size: Count | None = None
    decoder_sparse_step: Annotated[int, Field(ge=1, le=4096)] | None = None
    mlp_only_layers: list[int] | None = None
    norm_topk_prob: Flag = None
    # Of gpt-oss: slope and bound of its activation.
    swiglu_alpha: Positive | None = None
    swiglu_limit: Positive | None = None
    # Granite: multipliers of embeddings, logits, residuals and scores.
    embedding_multiplier: Positive | None = None
    logits_scaling: Positive | None = None
    residual_multiplier: Positive | None = None
    attention_multiplier: Positive | None = None
    rope_parameters: RopesFields | None = None
    rope_scaling: RopeFields | None = None
    # Ours: spans of keys that are searched for.
    superlinear: SuperlinearFields | None = None


class AnyConfigFields(StrictFields):
    """config.json of any architecture: what is read of each."""

    model_type: Annotated[str, Field(min_length=1, max_length=100)]
    vocab_size: Count | None = None
    eos_token_id: Id | list[Id] | None = None
    polydec_base: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class TextConfigFields(StrictFields):
    """text_config: what a config of several models says of its language model."""

    vocab_size: Count | None = None
    eos_token_id: Id | list[Id] | None = None


class GenerationConfigFields(StrictFields):
    """generation_config.json: what is read of it. The ranges of the sampling rules are the rules'
    own affair."""

    eos_token_id: Id | list[Id] | None = None
    do_sample: Flag = None
    temperature: Real | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    top_p: Real | None = None
    min_p: Real | None = None
    repetition_penalty: Real | None = None


class NamedTemplate(StrictFields):
    """One of several chat templates."""

    name: str
    template: str


class AddedTokenFields(StrictFields):
    """A token in addition to a vocabulary, and how it is found in a text."""

    content: Annotated[str, Field(min_length=1, max_length=1 << 16)]
    single_word: Flag = None
    lstrip: Flag = None
    rstrip: Flag = None
    normalized: Flag = None
    special: Flag = None


_Token = Annotated[str, Field(min_length=1, max_length=1 << 16)] | AddedTokenFields
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]


class TokenizerConfig(StrictFields):
    """tokenizer_config.json, with special_tokens_map.json, and chat_template.json."""

    # Three forms have been in use: one text, a list of named ones, or names with texts.
    chat_template: str | list[NamedTemplate] | dict[str, str] | None = None
    added_tokens_decoder: dict[_TokenId, AddedTokenFields] | None = None
    extra_special_tokens: list[_Token] | dict[str, _Token] | None = None
    additional_special_tokens: list[_Token] | None = None
    split_special_tokens: Flag = None


class AddedTokens(StrictFields):
    """added_tokens.json: tokens with their ids."""

    tokens: dict[str, Id]


class GGUFText(StrictFields):
    """The fields tokenizer.ggml.* of a GGUF file, and its chat template."""

    model: str
    pre: str = "default"
    tokens: list[str]
    token_type: list[int] | None = None
    scores: list[float] | None = None
    merges: list[str] | None = None
    add_bos_token: bool | None = None
    add_space_prefix: bool | None = None
    # Ids of tokens with a role; all of them may be missing.
    bos_token_id: Id | None = None
    eos_token_id: Id | None = None
    eot_token_id: Id | None = None
    eom_token_id: Id | None = None
    unknown_token_id: Id | None = None
    padding_token_id: Id | None = None
    chat_template: str | None = None


class AdapterFields(StrictFields):
    """adapter_config.json, as PEFT writes it."""

    # Checked by who reads it: other types are said by their name.
    peft_type: str
    base_model_name_or_path: Annotated[str, Field(min_length=1, max_length=4096)]
    lora_alpha: Positive = 8
    use_rslora: Flag = None
    # Ours: what lora_alpha is for rows of images (formats/image_adapter.py).
    polydec_image_alpha: Positive = 8
    # From here on: what makes it another method than plain LoRA, or says where it is applied.
    use_dora: Flag = None
    use_qalora: Flag = None
    use_bdlora: Flag = None
    fan_in_fan_out: Flag = None
    init_lora_weights: bool | str | None = None
    target_modules: str | list[str] | None = None
    exclude_modules: str | list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    alpha_pattern: dict[str, Positive] | None = None
    lora_bias: Flag = None
    modules_to_save: list[Any] | None = None
    target_parameters: list[Any] | None = None
    trainable_token_indices: list[Any] | dict[str, Any] | None = None
    megatron_config: dict[str, Any] | None = None
    velora_config: dict[str, Any] | None = None
    monteclora_config: dict[str, Any] | None = None
    arrow_config: dict[str, Any] | None = None
    kasa_config: dict[str, Any] | None = None
    layer_replication: list[Any] | None = None
    alora_invocation_tokens: list[Any] | None = None
    bias: str | None = None


class MaskedFields(StrictFields):
    """What a config.json says of a masked-diffusion model."""

    polydec_mask: Id
    polydec_shifted: bool = False
    polydec_block: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    polydec_boundary: Id | None = None
    polydec_written: Count | None = None


class InsertionFields(StrictFields):
    """What a config.json says of an insertion model."""

    polydec_insertion: Id
    # A file of such a model that says otherwise would be read in the wrong way, so it is refused.
    polydec_causal: Literal[False]


class LLaDAFields(StrictFields):
    """config.json of LLaDA's layout: what is read of it."""

    d_model: Count
    n_heads: Annotated[int, Field(ge=1, le=4096)]
    n_kv_heads: Annotated[int, Field(ge=1, le=4096)] | None = None
    n_layers: Annotated[int, Field(ge=1, le=4096)]
    vocab_size: Count
    embedding_size: Count | None = None
    mlp_hidden_size: Count | None = None
    mlp_ratio: Annotated[int, Field(ge=1, le=1024)] = 4
    max_sequence_length: Positions
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] = 10000.0
    rms_norm_eps: Annotated[float, Field(ge=0, le=1)] = 1e-5
    weight_tying: Flag = None
    mask_token_id: Id
    # Layers that lie together in one module; who reads the layout takes 1 only.
    block_group_size: int = 1


class LLaDAMoEFields(StrictFields):
    """config.json of LLaDA-MoE's layout: what is read of it in addition to the Llama skeleton's own
    fields.

    Attributes:
        moe_layer_freq: Of each layer whether it has experts.
    """

    num_hidden_layers: Annotated[int, Field(ge=1, le=4096)]
    num_experts: Annotated[int, Field(ge=1, le=4096)]
    num_experts_per_tok: Annotated[int, Field(ge=1, le=4096)]
    expert_intermediate_size: Count
    dense_intermediate_size: Count | None = None
    moe_layer_freq: list[Literal[0, 1]] | None = None


def check_config(config: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Check types and ranges of a config, and what must be right before lists of one entry a layer
    are made.

    Args:
        config: The config of the Llama skeleton.
        weights: The tensors by name, which are only counted.

    Raises:
        FileError: Something is wrong.
    """
    c = edge.validate_record(LlamaConfigFields, config, "config")
    layers = c.num_hidden_layers
    if layers is None:
        return  # who reads the config names what is missing
    # Every layer has tensors: a larger number is wrong, and lists of that length would fill memory.
    if layers > len(weights):
        raise FileError(
            f"num_hidden_layers is {layers}: the file holds {len(weights)} tensors in all"
        )
    if c.layer_types is not None and len(c.layer_types) != layers:
        raise FileError(
            f"layer_types has {len(c.layer_types)} entries: num_hidden_layers is {layers}"
        )
    # A longer list is legal: models cut to fewer layers keep it.
    if c.no_rope_layers and len(c.no_rope_layers) < layers:
        raise FileError(
            f"no_rope_layers has {len(c.no_rope_layers)} entries: num_hidden_layers is {layers}"
        )


def check_shapes(c: Any, weights: Mapping[str, Any]) -> None:
    """Check that the weights are as the config asks, by names and shapes, before anything is read
    or made room for.

    Args:
        c: The config, a `TransformerConfig`.
        weights: The tensors by name.

    Raises:
        FileError: A tensor is missing or has another shape, or a rotary scaling does not fit.
    """
    if "lm_head.tokens" in weights:
        _check_tokens(weights, c.vocab)
    for name, shape, needed in _shapes(c, weights):
        if name not in weights and not needed:
            continue
        if (stored := shape_of(weights, name)) != shape:
            raise FileError(f"{name} has shape {stored}: the config asks for {shape}")
    for rope in c.ropes:
        _check_rope(rope, c.head)


def shape_of(weights: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Shape of a tensor, without reading it where the file allows that.

    Args:
        weights: Tensors by name.
        name: The tensor.

    Returns:
        Its shape.

    Raises:
        FileError: It is missing.
    """
    if name not in weights:
        raise FileError(
            f"weights lack {name}: the checkpoint is not complete, or of another architecture"
        )
    # Mappings over files answer from a header, plain dictionaries hold the tensors.
    of = getattr(weights, "tensor_shape", None)
    if of is None:
        return tuple(weights[name].shape)
    return of(name)


def require_shapes(weights: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that each of these tensors is there and has its shape, before anything is read or made
    room for.

    Args:
        weights: The tensors of a file by name.
        shapes: What the config asks for, by the file's names.

    Raises:
        FileError: The first that is missing or has another shape, with both.
    """
    for name, shape in shapes.items():
        if (stored := shape_of(weights, name)) != shape:
            raise FileError(f"{name} has shape {stored}: config.json asks for {shape}")


def _shapes(c: Any, weights: Mapping[str, Any]) -> Any:
    """(name, shape, whether it must be there) of every tensor that is read."""
    W = c.width
    q = c.heads * c.head
    kv = c.kv_heads * c.head
    if "lm_head.tokens" in weights:
        rows = shape_of(weights, "lm_head.tokens")[0]
    else:
        rows = c.vocab
    narrow = "model.embed_tokens.proj.weight"
    # A narrow table of embeddings, with a matrix that widens them: its own width is free.
    if narrow in weights:
        wide = shape_of(weights, narrow)
        yield narrow, (W, *wide[1:2]), True
        yield "model.embed_tokens.weight", (c.vocab, *wide[1:2]), True
    else:
        yield "model.embed_tokens.weight", (c.vocab, W), True
    yield "model.norm.weight", (W,), True
    # A head may be the embedding table, unless the config says that it is not.
    yield "lm_head.weight", (rows, W), c.tied is False
    # A few families have one, and none of them must.
    yield "lm_head.bias", (rows,), False
    for i in range(c.layers):
        at = f"model.layers.{i}."
        # Matrices must be there, their biases may be.
        for name, n, k in (
            ("self_attn.q_proj", q, W),
            ("self_attn.k_proj", kv, W),
            ("self_attn.v_proj", kv, W),
            ("self_attn.o_proj", W, q),
            *_mlp(c, i),
        ):
            yield f"{at}{name}.weight", (n, k), True
            yield f"{at}{name}.bias", (n,), False
        # Queries that search for spans, where a model has them.
        if c.superlinear is not None:
            yield f"{at}self_attn.search_proj.weight", (q, W), True
        for name in c.norms.names:
            yield f"{at}{name}.weight", (W,), True
        # One number a head, which takes a part of the attention and gives nothing.
        if c.sinks:
            yield at + "self_attn.sinks", (c.heads,), True
        # Norms of queries and keys come in pairs or not at all.
        normed = at + "self_attn.q_norm.weight" in weights
        for x, n in (("q", q), ("k", kv)):
            yield f"{at}self_attn.{x}_norm.weight", (n if c.wide_norms else c.head,), normed


def _mlp(c: Any, i: int) -> Any:
    """(name, rows, columns) of the matrices of a layer's MLP, or of its experts."""
    W = c.width
    inner = c.inner
    # Some models have experts in some of their layers only.
    if not c.is_sparse(i):
        yield from (
            ("mlp.gate_proj", inner, W),
            ("mlp.up_proj", inner, W),
            ("mlp.down_proj", W, inner),
        )
        return
    # The router is a matrix from states to experts.
    inner = c.experts.inner
    yield "mlp.gate", c.experts.count, W
    for e in range(c.experts.count):
        at = f"mlp.experts.{e}."
        yield from (
            (at + "gate_proj", inner, W),
            (at + "up_proj", inner, W),
            (at + "down_proj", W, inner),
        )


def _check_rope(rope: Any, head: int) -> None:
    """What the scalings divide by must not be nothing, and their tables have one divisor a
    frequency."""
    o = rope.options
    turned = rope.dim
    kind = rope.kind
    if turned < 2 or turned % 2:
        raise FileError(
            f"rotary embedding turns {turned} of {head} dimensions: it must be an even number of at least 2"
        )
    # Its exponent is dim / (dim - 2), which has no value at 2.
    if kind == "dynamic" and turned < 4:
        raise FileError(f"rope_type is 'dynamic' and {turned} dimensions turn: it needs at least 4")
    # The ramp between both divides by their difference.
    if kind == "llama3" and o["low_freq_factor"] >= o["high_freq_factor"]:
        raise FileError(
            f"low_freq_factor is {o['low_freq_factor']}: it must lie below high_freq_factor, "
            f"{o['high_freq_factor']}"
        )
    for name in ("short_factor", "long_factor"):
        if kind == "longrope" and len(o[name]) != turned // 2:
            raise FileError(f"{name} has {len(o[name])} entries: {turned // 2} frequencies turn")


def _check_tokens(weights: Mapping[str, Any], vocab: int) -> None:
    """A head over some tokens only names each of them once. Nothing is read that is no list of at
    most so many."""
    shape = shape_of(weights, "lm_head.tokens")
    if len(shape) != 1 or not 1 <= shape[0] <= vocab:
        raise FileError(
            f"lm_head.tokens has shape {shape}: it must be a list of 1 to {vocab} whole numbers"
        )
    tokens = weights["lm_head.tokens"]
    # Checked before they are read as ids: 0.5 would be cut to a legal one.
    if tokens.is_floating_point() or tokens.is_complex():
        raise FileError(f"lm_head.tokens is {tokens.dtype}: whole numbers are expected")
    # Its length is bounded by now, so that it may be read.
    ids = set(tokens.tolist())
    if len(ids) != len(tokens) or min(ids) < 0 or max(ids) >= vocab:
        raise FileError(
            f"lm_head.tokens holds {min(ids)} to {max(ids)}, {len(ids)} of {len(tokens)} different ones: "
            f"each must lie in 0 to {vocab - 1} and occur once"
        )


def longest_tensor_side(weights: Mapping[str, Any]) -> int:
    """The longest side of any tensor that holds a number: one of shape [2**24, 0] takes no byte of
    a file."""
    shapes = (shape_of(weights, name) for name in weights)
    # No tensor at all, or none with numbers: then no side is long.
    return max((max(shape) for shape in shapes if shape and 0 not in shape), default=0)


def source_of(weights: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The arrays that a tensor is made of, as they lie in its file, where the mapping makes it when
    it is asked for.

    Args:
        weights: Tensors by name.
        name: The tensor.

    Returns:
        The arrays; the tensor itself where it is stored as it is.
    """
    find = getattr(weights, "source_of", None)
    if find is None:
        return (weights[name].detach(),)
    return find(name)
