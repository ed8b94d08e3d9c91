"""What the files of trained parts may say: the types and ranges of every field of their config.json, one class a kind.

They stand in a file of their own, as a start that loads no trained part need not make them: a class takes pydantic a
millisecond.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from polydec.base.errors import FileError
from polydec.models.formats.fields import Count, Id, Positions, RopeFields, StrictFields


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
    def _divides(self) -> Self:
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
        pieces: Pieces of a vector that is kept as codes; 0: none was learned.
        centres: Of each piece.
        opening: The mark before a passage.
        closing: The mark after it.
    """

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    chunk: Annotated[int, Field(ge=1, le=1 << 16)]
    factor: Annotated[int, Field(ge=1, le=64)]
    bottleneck: Annotated[int, Field(ge=1, le=1 << 16)]
    target: Annotated[int, Field(ge=1, le=1 << 20)]
    pieces: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    centres: Annotated[int, Field(ge=0, le=256)] = 0
    opening: Id
    closing: Id

    @model_validator(mode="after")
    def _cuts(self) -> Self:
        if self.pieces and (self.bottleneck % self.pieces or not self.centres):
            raise FileError(
                f"pieces is {self.pieces}: it must divide bottleneck ({self.bottleneck}), with centres of at least 1"
            )
        return self


class HypernetworkFields(StrictFields):
    """config.json of a hypernetwork.

    Attributes:
        longest: Tokens that become one, at most.
        target: Size of what is made.
        answers: Units that an answer may be written in.
    """

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    longest: Annotated[int, Field(ge=1, le=256)]
    width: Annotated[int, Field(ge=1, le=1 << 16)]
    layers: Annotated[int, Field(ge=0, le=256)]
    heads: Annotated[int, Field(ge=1, le=1 << 12)]
    target: Annotated[int, Field(ge=1, le=1 << 20)]
    answers: Annotated[int, Field(ge=0, le=1 << 20)] = 0

    @model_validator(mode="after")
    def _divides(self) -> Self:
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


class LengthHeadFields(StrictFields):
    """config.json of a head that foretells lengths.

    Attributes:
        longest: Tokens of the longest answer that it knows.
    """

    width: Annotated[int, Field(ge=1, le=1 << 14)]
    longest: Annotated[int, Field(ge=1, le=4096)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]


class UpsamplerFields(StrictFields):
    """config.json of what lifts small pictures to large ones.

    Attributes:
        height: Tokens of a column of a large picture.
        width: Tokens of a row of it.
        ratio: Rows of it for one of the small picture.
        tiles: Tokens that draw something; they stand first.
        units: Channels of the convolutions.
        patch: Pixels of a tile's side.
        values: Of a pixel: 1 (grey) or 3 (red, green, blue).
    """

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    height: Annotated[int, Field(ge=1, le=512)]
    width: Annotated[int, Field(ge=1, le=512)]
    ratio: Annotated[int, Field(ge=2, le=16)]
    tiles: Annotated[int, Field(ge=1, le=1 << 20)]
    units: Annotated[int, Field(ge=1, le=1 << 13)]
    layers: Annotated[int, Field(ge=0, le=64)]
    patch: Annotated[int, Field(ge=1, le=2048)]
    values: Literal[1, 3]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.tiles > self.vocab_size:
            raise FileError(
                f"tiles is {self.tiles} and vocab_size {self.vocab_size}: each tile is a token"
            )
        return self


class MaskHeadFields(StrictFields):
    """config.json of what reads masks of images behind a text.

    Attributes:
        asks: The token behind which a mask is read.
        mark: The token that stands for a patch.
        rows: Rows of patches of an image.
        columns: Patches of a row.
        patch: Pixels of a patch's side.
        width: Size of the states.
    """

    vocab_size: Annotated[int, Field(ge=2, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    asks: Id
    mark: Id
    rows: Annotated[int, Field(ge=1, le=1 << 10)]
    columns: Annotated[int, Field(ge=1, le=1 << 10)]
    patch: Annotated[int, Field(ge=1, le=1 << 10)]
    width: Annotated[int, Field(ge=1, le=1 << 20)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (most := max(self.asks, self.mark)) >= self.vocab_size:
            raise FileError(f"a token is {most}: vocab_size is {self.vocab_size}")
        return self


class UnitDecoderFields(StrictFields):
    """config.json of what makes boxes and masks of states.

    Attributes:
        rows: Rows of patches of an image.
        columns: Patches of a row.
        patch: Pixels of a patch's side.
        width: Size of the states.
        inner: Size of queries.
    """

    vocab_size: Annotated[int, Field(ge=2, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    rows: Annotated[int, Field(ge=1, le=1 << 10)]
    columns: Annotated[int, Field(ge=1, le=1 << 10)]
    patch: Annotated[int, Field(ge=1, le=1 << 10)]
    width: Annotated[int, Field(ge=1, le=1 << 20)]
    inner: Annotated[int, Field(ge=1, le=1 << 16)]


class PatchHeadFields(StrictFields):
    """config.json of what draws patches of pictures behind a model's states.

    Attributes:
        levels: Grey levels, which are the vocabulary's first tokens.
        patches: Of a picture.
        values: Pixels of a patch.
        width: Size of the states.
        units: Size of the head's own states.
        steps: Gaussian steps from noise to a patch.
    """

    vocab_size: Annotated[int, Field(ge=2, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    levels: Annotated[int, Field(ge=2, le=1 << 16)]
    patches: Annotated[int, Field(ge=1, le=1 << 18)]
    values: Annotated[int, Field(ge=1, le=4096)]
    width: Annotated[int, Field(ge=1, le=1 << 20)]
    units: Annotated[int, Field(ge=1, le=1 << 13)]
    layers: Annotated[int, Field(ge=0, le=64)]
    steps: Annotated[int, Field(ge=1, le=1000)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.levels > self.vocab_size:
            raise FileError(
                f"levels is {self.levels} and vocab_size {self.vocab_size}: each level is a token"
            )
        return self


class WordReaderFields(StrictFields):
    """config.json of a one-pass reader of words in images.

    Attributes:
        reading: Which head it has, by the name of its method.
        head: Size of an attention head.
        inner: Units of the MLPs.
        first: Layers that read the image.
        pixels: Units of the map that reads a window of pixels.
        longest: Letters of a word that it was trained for.
        rounds: Rounds in which a head that walks refines what it reads.
        distances: Whether a head that walks also scores how far it goes.
        joins: Layers in which a head that counts joins places and letters.
    """

    vocab_size: Annotated[int, Field(ge=2, le=1 << 16)]
    tokenizer: Annotated[str, Field(max_length=100)]
    reading: Literal["cppd", "lister", "mdiff4str"]
    width: Annotated[int, Field(ge=1, le=1 << 13)]
    head: Annotated[int, Field(ge=1, le=1 << 12)]
    inner: Annotated[int, Field(ge=1, le=1 << 16)]
    first: Annotated[int, Field(ge=1, le=256)]
    pixels: Annotated[int, Field(ge=1, le=1 << 16)]
    longest: Annotated[int, Field(ge=1, le=1024)]
    rounds: Annotated[int, Field(ge=0, le=8)] = 0
    distances: bool = False
    joins: Annotated[int, Field(ge=1, le=16)] = 1
    strip_height: Annotated[int, Field(ge=4, le=256)]
    strip_stride: Annotated[int, Field(ge=1, le=256)]
    strip_window: Annotated[int, Field(ge=1, le=512)]
    strip_most: Annotated[int, Field(ge=1, le=4096)]

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.width % self.head:
            raise FileError(f"width is {self.width} and head {self.head}: head must divide width")
        return self


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
        sections: Pairs of dimensions of a head that turn by time, rows and columns, in turns; none:
            all turn by the place in the text.
    """

    heads: Annotated[int, Field(ge=1, le=1 << 12)]
    kv_heads: Annotated[int, Field(ge=1, le=1 << 12)]
    inner: Annotated[int, Field(ge=1, le=1 << 20)]
    theta: Annotated[float, Field(gt=1, le=1e12)]
    layers: Annotated[int, Field(ge=1, le=64)] = 1
    sections: list[Annotated[int, Field(ge=1, le=4096)]] = Field(
        default_factory=list[int], max_length=64
    )


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


class MsdFields(EagleFields):
    """config.json of an MSD drafter.

    Attributes:
        decoupled: Whether a place of an image enters as its vector alone.
    """

    decoupled: bool


class FlashFields(EagleFields):
    """config.json of a FLASH drafter.

    Attributes:
        block: States that a pass guesses.
        latents: Rows that an image becomes; 0: as many as it has vectors.
        scaled: Whether products are divided by the root of the width before the softmax.
    """

    block: Annotated[int, Field(ge=1, le=16)]
    latents: Annotated[int, Field(ge=0, le=1 << 12)]
    scaled: bool


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
