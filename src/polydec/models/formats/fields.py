"""What model files may say: the types and ranges of every field that is read, one class a kind of
file.

Fields beyond these are legal and stay unread. `edge.validate_record` turns a field that is not as
written here into one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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


class NGramFields(StrictFields):
    """config.json of an n-gram table; tokens are 16 bits wide, and the largest stands for none."""

    order: Annotated[int, Field(ge=1, le=8)]
    vocab_size: Count
    tokenizer: Annotated[str, Field(max_length=100)]


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


class StopHeadFields(StrictFields):
    """config.json of a stop head."""

    width: Annotated[int, Field(ge=1, le=1 << 20)]
    depth: Annotated[int, Field(ge=0, le=64)]
    tied: bool


class ThoughtFields(StrictFields):
    """config.json of what makes a thought of a state.

    Attributes:
        width: Size of what is made.
        states: Size of what it is made of.
        mark: The token at which the model that thinks is read.
    """

    width: Annotated[int, Field(ge=1, le=1 << 20)]
    states: Annotated[int, Field(ge=1, le=1 << 20)]
    mark: Id


class ChunkEncoderFields(StrictFields):
    """config.json of an encoder of chunks.

    Attributes:
        chunk: Tokens of a chunk.
        target: Size of what is made.
        policy_places: Chunks that are scored together.
        opening: The mark before a passage.
        closing: The mark after it.
    """

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    chunk: Annotated[int, Field(ge=1, le=4096)]
    width: Annotated[int, Field(ge=1, le=1 << 16)]
    layers: Annotated[int, Field(ge=0, le=256)]
    heads: Annotated[int, Field(ge=1, le=1 << 12)]
    policy_width: Annotated[int, Field(ge=1, le=1 << 16)]
    policy_layers: Annotated[int, Field(ge=0, le=256)]
    policy_heads: Annotated[int, Field(ge=1, le=1 << 12)]
    policy_places: Annotated[int, Field(ge=1, le=1 << 20)]
    target: Annotated[int, Field(ge=1, le=1 << 20)]
    opening: Id
    closing: Id

    @model_validator(mode="after")
    def _divides(self) -> ChunkEncoderFields:
        if self.width % self.heads or self.policy_width % self.policy_heads:
            raise FileError(
                f"width is {self.width} and heads {self.heads}, policy_width {self.policy_width} and policy_heads "
                f"{self.policy_heads}: heads must divide widths"
            )
        return self


class LlamaLayersFields(StrictFields):
    """What a config says of layers of Llama's kind that are not the target's own."""

    width: Annotated[int, Field(ge=2, le=1 << 16)]
    layers: Annotated[int, Field(ge=1, le=1024)]
    heads: Annotated[int, Field(ge=1, le=1 << 12)]
    kv_heads: Annotated[int, Field(ge=1, le=1 << 12)]
    inner: Annotated[int, Field(ge=1, le=1 << 18)]
    theta: Annotated[float, Field(gt=0.0, le=1e12)]
    eps: Annotated[float, Field(gt=0.0, le=1.0)]

    @model_validator(mode="after")
    def _divides(self) -> Self:
        # Rotary angles turn pairs of dimensions, so a head has an even number of them.
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise FileError(
                f"width is {self.width}, heads {self.heads} and kv_heads {self.kv_heads}: width must be an even multiple of "
                "heads, and heads a multiple of kv_heads"
            )
        return self


class ArcEncoderFields(LlamaLayersFields):
    """config.json of an encoder that pools passages.

    Attributes:
        chunk: Tokens that are encoded together, at most.
        factor: Tokens for each vector, as it was trained.
        bottleneck: Size between the two maps of the projector.
        target: Size of what is made.
        opening: The mark before a passage.
        closing: The mark after it.
    """

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    chunk: Annotated[int, Field(ge=1, le=1 << 16)]
    factor: Annotated[int, Field(ge=1, le=64)]
    bottleneck: Annotated[int, Field(ge=1, le=1 << 16)]
    target: Annotated[int, Field(ge=1, le=1 << 20)]
    opening: Id
    closing: Id


class HypernetworkFields(StrictFields):
    """config.json of a hypernetwork.

    Attributes:
        longest: Tokens that become one, at most.
        target: Size of what is made.
    """

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    longest: Annotated[int, Field(ge=1, le=256)]
    width: Annotated[int, Field(ge=1, le=1 << 16)]
    layers: Annotated[int, Field(ge=0, le=256)]
    heads: Annotated[int, Field(ge=1, le=1 << 12)]
    target: Annotated[int, Field(ge=1, le=1 << 20)]

    @model_validator(mode="after")
    def _divides(self) -> HypernetworkFields:
        if self.width % self.heads:
            raise FileError(
                f"width is {self.width} and heads {self.heads}: heads must divide width"
            )
        return self


class CoprocessorFields(LlamaLayersFields):
    """config.json of a coprocessor. count: vectors that it makes."""

    count: Annotated[int, Field(ge=1, le=64)]


class FilterFields(StrictFields):
    """config.json of a filter of confidences.

    Attributes:
        hidden: Hidden units; 0, in older files, means as many as the block has positions.
        written: Whether it reads the model's confidence where a token stands, too.
    """

    block: Annotated[int, Field(ge=1, le=4096)]
    # Absent in older files, as is the next one.
    hidden: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    written: bool = False


class RewardFields(StrictFields):
    """config.json of a classifier of texts."""

    size: Annotated[int, Field(ge=1, le=1 << 20)]
    order: Annotated[int, Field(ge=1, le=8)]


class ValueFields(StrictFields):
    """config.json of a value network."""

    width: Annotated[int, Field(ge=1, le=1 << 14)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]


class BlockDrafterFields(StrictFields):
    """config.json of a block drafter.

    Attributes:
        first: Layers of its encoder.
        layers: Layers of its decoder.
        block: Gaps that it was trained to fill at once.
    """

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    width: Annotated[int, Field(ge=1, le=1 << 14)]
    head: Annotated[int, Field(ge=1, le=1 << 12)]
    inner: Annotated[int, Field(ge=1, le=1 << 16)]
    first: Annotated[int, Field(ge=1, le=256)]
    layers: Annotated[int, Field(ge=1, le=256)]
    block: Annotated[int, Field(ge=1, le=64)]


class StepRewardFields(StrictFields):
    """config.json of a process reward model."""

    width: Annotated[int, Field(ge=1, le=1 << 20)]
    inner: Annotated[int, Field(ge=1, le=1 << 16)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]


class OutcomeHeadFields(StepRewardFields):
    """config.json of an outcome head: sizes, and what is wanted of a finished text."""

    holds: Annotated[str, Field(max_length=4096)] = ""
    least: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    most: Annotated[int, Field(ge=0, le=1 << 24)] = 0


class TextRouterFields(LlamaLayersFields):
    """config.json of a router that reads the text. head: numbers between the state and the chance."""

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    context: Annotated[int, Field(ge=2, le=1 << 24)]
    head: Annotated[int, Field(ge=1, le=1 << 16)]


class LayerFields(StrictFields):
    """What a config says of a layer that reads states.

    Attributes:
        layers: How many of them there are one after another, each of these sizes.
    """

    heads: Annotated[int, Field(ge=1, le=1 << 12)]
    kv_heads: Annotated[int, Field(ge=1, le=1 << 12)]
    inner: Annotated[int, Field(ge=1, le=1 << 20)]
    theta: Annotated[float, Field(gt=1, le=1e12)]
    layers: Annotated[int, Field(ge=1, le=64)] = 1


class StateDrafterFields(StrictFields):
    """config.json of whatever drafts from a target's states: what all of them say."""

    width: Annotated[int, Field(ge=1, le=1 << 20)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    # Of levels below the root, how often the token of each rank was right on held-out text.
    rates: Annotated[
        list[
            Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=64)]
        ],
        Field(min_length=1, max_length=16),
    ]
    # What a level of drafting costs, in passes of the target, as measured in training.
    share: Annotated[float, Field(ge=0, le=1e3)] = 0.0


class JointFields(StrictFields):
    """config.json of a joint sampler's layer."""

    width: Annotated[int, Field(ge=1, le=1 << 20)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    layer: LayerFields


class HeadsFields(StateDrafterFields):
    """config.json of draft heads."""

    reads: bool
    layer: LayerFields | None = None
    blocks: Annotated[int, Field(ge=1, le=64)] = 1
    own: bool = False


class EagleFields(StateDrafterFields):
    """config.json of an EAGLE drafter."""

    layer: LayerFields


class JudgeFields(StrictFields):
    """config.json of a judge."""

    width: Annotated[int, Field(ge=1, le=1 << 20)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]


_Layer = Annotated[int, Field(ge=0, le=4096)]


class ProbeFields(StateDrafterFields):
    """config.json of soft probes.

    Attributes:
        copies: Chains of each probe.
    """

    maps: bool
    enter: _Layer | Annotated[list[_Layer], Field(max_length=16)]
    copies: Annotated[int, Field(ge=1, le=16)] = 1


class MtpFields(StateDrafterFields):
    """config.json of masks with a gated adapter.

    Attributes:
        layers: Layers of the adapter; 0: there is none.
        rank: Rank of the adapter; 0: there is none.
        qkv: Rows of queries, keys and values together.
        gathered: Numbers that the heads gather.
        inner: Inner units of the MLP.
    """

    layers: Annotated[int, Field(ge=0, le=4096)]
    rank: Annotated[int, Field(ge=0, le=1 << 12)]
    qkv: Annotated[int, Field(ge=0, le=1 << 22)]
    gathered: Annotated[int, Field(ge=0, le=1 << 22)]
    inner: Annotated[int, Field(ge=0, le=1 << 22)]


class CloverFields(EagleFields):
    """config.json of a Clover drafter."""

    levels: Annotated[int, Field(ge=1, le=16)]


class FalconFields(EagleFields):
    """config.json of a Falcon drafter."""

    block: Annotated[int, Field(ge=1, le=8)]


class LongSpecFields(EagleFields):
    """config.json of a LongSpec drafter."""

    head: Annotated[int, Field(ge=1, le=1 << 12)]
    window: Annotated[int, Field(ge=1, le=1 << 20)]


class Eagle3Fields(EagleFields):
    """config.json of an EAGLE-3 drafter."""

    depths: Annotated[
        list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=1, max_length=16)
    ]
    tokens: Annotated[int, Field(ge=1, le=1 << 24)]


class NarrowFields(Eagle3Fields):
    """Of one of the target's width. start: the draft model whose head it has."""

    start: Annotated[str | None, Field(max_length=1000)] = None


class AuxiliaryFields(StrictFields):
    """eagle_config of a published EAGLE-3: layers whose states are read, each by the layer that
    gives them."""

    eagle_aux_hidden_state_layer_ids: list[Annotated[int, Field(ge=0, le=4095)]] | None = None
    use_aux_hidden_state: bool = True


class TrainedFields(StrictFields):
    """What `polydec train` says of weights in somebody else's layout."""

    tokenizer: Annotated[str, Field(max_length=100)]
    # A row for each level, of each rank its rate: as many levels as a draft may have heads.
    rates: Annotated[
        list[
            Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=64)]
        ],
        Field(max_length=64),
    ]
    share: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class PublishedMedusaFields(StrictFields):
    """config.json of published Medusa heads: its authors' names, or vLLM's.

    Attributes:
        truncated_vocab_size: Heads that know some tokens only are not read, nor are several blocks
            a head.
    """

    # One of both names must be there.
    medusa_num_heads: Annotated[int, Field(ge=1, le=64)] | None = None
    num_heads: Annotated[int, Field(ge=1, le=64)] | None = None
    # Literals refuse what the heads' code here does not compute.
    medusa_num_layers: Literal[1] = 1
    num_hidden_layers: Literal[1] = 1
    hidden_size: Count | None = None
    vocab_size: Count | None = None
    truncated_vocab_size: Count | None = None
    original_lm_head: Literal[False] = False
    logit_scale: Literal[1] = 1
    polydec_trained: TrainedFields | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.medusa_num_heads is None and self.num_heads is None:
            raise FileError("num_heads is missing: it must be a whole number from 1 to 64")
        if self.truncated_vocab_size not in (None, self.vocab_size):
            raise FileError(
                f"truncated_vocab_size is {self.truncated_vocab_size}: heads of some tokens only are not read"
            )
        return self

    @property
    def count(self) -> int:
        """Number of heads."""
        # The 0 is never reached: one of both is there, as `_whole` checked.
        return self.medusa_num_heads or self.num_heads or 0


class PublishedFields(StrictFields):
    """config.json of a published EAGLE-3."""

    vocab_size: Count
    hidden_size: Annotated[int, Field(ge=2, le=1 << 20)]
    num_attention_heads: Annotated[int, Field(ge=1, le=4096)]
    intermediate_size: Count
    num_hidden_layers: Literal[1] = 1
    num_key_value_heads: Annotated[int, Field(ge=1, le=4096)] | None = None
    head_dim: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] | None = None
    draft_vocab_size: Count | None = None
    max_position_embeddings: Positions = 2048
    rms_norm_eps: Annotated[float, Field(ge=0, le=1)] = 1e-6
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] | None = None
    rope_scaling: RopeFields | None = None
    rope_parameters: RopeFields | None = None
    # Literals refuse what the drafter's code here does not compute.
    hidden_act: Literal["silu"] = "silu"
    attention_bias: Literal[False] | None = None
    mlp_bias: Literal[False] | None = None
    bias: Literal[False] | None = None
    tie_word_embeddings: Literal[False] | None = None
    norm_before_residual: bool = False
    eagle_aux_hidden_state_layer_ids: list[Annotated[int, Field(ge=1, le=4096)]] | None = None
    eagle_config: AuxiliaryFields | None = None
    polydec_trained: TrainedFields | None = None

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head(self) -> int:
        """Width of a head of attention."""
        # Some models have heads that are wider together than their states.
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def depths(self) -> tuple[int, ...]:
        """After how many layers of the target states are read; nothing where it does not say."""
        if self.eagle_aux_hidden_state_layer_ids:
            return tuple(self.eagle_aux_hidden_state_layer_ids)
        inner = self.eagle_config and self.eagle_config.eagle_aux_hidden_state_layer_ids
        # There layers are counted from 0, and a state after layer d has passed d + 1 of them.
        return tuple(d + 1 for d in inner or ())


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
