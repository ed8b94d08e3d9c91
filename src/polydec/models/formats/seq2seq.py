"""Configurations of encoder-decoder models, in one form: T5 (v1, v1.1, FLAN), BART and Marian, and a T5 whose
encoder reads images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polydec.base.errors import FileError
from polydec.models.formats.images import StripShape

LONGEST = 2048
"""Tokens of a source, and of an answer, of a model that has no table of positions (T5)."""

READER = "polydec_reader"
"""Model type of a T5 whose encoder reads an image, strip by strip, in the place of tokens."""

ACTS = ("relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "swish")
"""Activations that are known by their names in configs."""


@dataclass(frozen=True)
class Seq2SeqConfig:
    """An encoder-decoder model.

    Attributes:
        family: "t5", "bart" or "marian".
        vocab: Size of the vocabulary.
        width: Size of the states.
        heads: Heads of attention.
        head: Size of a head.
        first: Layers of the encoder.
        layers: Layers of the decoder.
        act: Activation of the MLPs.
        gated: Whether the MLPs have a gate.
        eps: Added to the norms' mean squares or variances.
        scale: What embeddings are multiplied by.
        divide: What states are divided by before the head.
        buckets: Buckets of T5's relative positions; 0: there are none.
        far: Distance from which on they share the last bucket.
        context: The longest text, in tokens.
        start: Tokens that every answer begins with.
        barred: Tokens that are never written.
        strip: How an image is read. None: the encoder reads tokens.
    """

    family: str
    vocab: int
    width: int
    heads: int
    head: int
    first: int
    layers: int
    act: str
    gated: bool
    eps: float
    scale: float
    divide: float
    buckets: int
    far: int
    context: int
    start: tuple[int, ...]
    barred: tuple[int, ...]
    strip: StripShape | None = None


@dataclass(frozen=True)
class T5Shape:
    """Sizes of a T5 network (v1, relu).

    Attributes:
        vocab: Size of the vocabulary.
        width: Size of the states.
        head: Size of an attention head, of which there are width / head.
        inner: Inner units of the MLPs.
        first: Layers of the encoder.
        layers: Layers of the decoder.
    """

    vocab: int
    width: int
    head: int
    inner: int
    first: int
    layers: int

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return self.width // self.head

    def published_config(self, start: int, end: int) -> dict[str, Any]:
        """The content of a config.json.

        Args:
            start: Token that every text begins with; it fills up shorter texts as well.
            end: Token that ends a text.

        Returns:
            The config, with the names of Hugging Face.
        """
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "is_encoder_decoder": True,
            "vocab_size": self.vocab,
            "d_model": self.width,
            "d_kv": self.head,
            "d_ff": self.inner,
            "num_layers": self.first,
            "num_decoder_layers": self.layers,
            "num_heads": self.heads,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "feed_forward_proj": "relu",
            "layer_norm_epsilon": 1e-6,
            "dropout_rate": 0.0,
            "tie_word_embeddings": True,
            "pad_token_id": start,
            "decoder_start_token_id": start,
            "eos_token_id": end,
        }


def is_seq2seq(config: Mapping[str, Any]) -> bool:
    """Whether a config is of one of these families."""
    return config.get("model_type") in ("t5", "bart", "marian", READER)


def read_seq2seq_config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Seq2SeqConfig:
    """Read the configuration of an encoder-decoder model.

    Args:
        config: Content of the config.json.
        generation: Content of the generation_config.json.

    Returns:
        The configuration.

    Raises:
        FileError: A field is missing, out of range, or says what no such model has.
    """
    family = config["model_type"]
    strip = None
    # All of such a model is a T5 but what its encoder's first layer is given.
    if family == READER:
        family = "t5"
        strip = _strip(config)
    t5 = family == "t5"
    width = _whole(config, "d_model")
    # T5 and the BART family name the same sizes in different ways.
    if t5:
        names = ("num_heads", "num_layers", "num_decoder_layers")
    else:
        names = ("decoder_attention_heads", "encoder_layers", "decoder_layers")
    # T5's decoder is as deep as its encoder, unless the config says otherwise.
    if t5 and config.get("num_decoder_layers") is None:
        names = (names[0], names[1], names[1])
    heads, first, layers = (_whole(config, name) for name in names)
    if not t5 and config.get("encoder_attention_heads", heads) != heads:
        raise FileError("encoder_attention_heads and decoder_attention_heads differ")
    if t5:
        head = _whole(config, "d_kv")
    else:
        head = width // heads
    if not t5 and head * heads != width:
        raise FileError(f"d_model is {width}: it must be a multiple of the {heads} heads")
    activation = str(
        config.get("feed_forward_proj", "relu") if t5 else config["activation_function"]
    )
    # T5 v1.1 calls the tanh form of GELU so; of other names the last part is the activation.
    if activation == "gated-gelu":
        act = "gelu_new"
    else:
        act = activation.rpartition("-")[2]
    if act not in ACTS:
        raise FileError(
            f"activation {activation[:40]!r} is unknown: it must be one of {', '.join(ACTS)}"
        )
    if t5:
        _require_buckets(config)
    vocab = _whole(config, "vocab_size")
    scaled = not t5 and config.get("scale_embedding", False)
    # T5 with tied embeddings divides states by sqrt(d_model) before the head.
    tied = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    # The BART family has fixed eps, scales embeddings if its config says so, and has a table of
    # positions that bounds the context.
    return Seq2SeqConfig(
        family,
        vocab,
        width,
        heads,
        head,
        first,
        layers,
        act,
        activation.startswith("gated-"),
        float(config.get("layer_norm_epsilon", 1e-6)) if t5 else 1e-5,
        width**0.5 if scaled else 1.0,
        width**0.5 if t5 and tied else 1.0,
        _whole(config, "relative_attention_num_buckets", 32) if t5 else 0,
        _whole(config, "relative_attention_max_distance", 128) if t5 else 0,
        LONGEST if t5 else _whole(config, "max_position_embeddings"),
        _start(config, generation, vocab),
        _barred(config, generation, vocab),
        strip,
    )


def reader_config(shape: T5Shape, strip: StripShape, start: int, end: int) -> dict[str, Any]:
    """The content of the config.json of a T5 whose encoder reads images.

    Args:
        shape: Sizes of the network.
        strip: How it reads images.
        start: Token that every text begins with.
        end: Token that ends a text.

    Returns:
        The config.
    """
    return {
        **shape.published_config(start, end),
        "architectures": ["PolydecReader"],
        "model_type": READER,
        "strip_height": strip.height,
        "strip_stride": strip.stride,
        "strip_window": strip.window,
        "strip_most": strip.most,
    }


def _strip(config: Mapping[str, Any]) -> StripShape:
    """How a model reads images. Raises FileError where its config says it wrongly."""
    height, stride, window, most = (
        _whole(config, f"strip_{name}") for name in ("height", "stride", "window", "most")
    )
    for name, value, low, high in (
        ("height", height, 4, 256),
        ("stride", stride, 1, 256),
        ("window", window, stride, 512),
        ("most", most, 1, 4096),
    ):
        if not low <= value <= high:
            raise FileError(f"strip_{name} is {value}: it must lie in {low} to {high}")
    if (window - stride) % 2:
        raise FileError(
            f"strip_window is {window}: what it is wider than the stride, {stride}, must be even"
        )
    return StripShape(height, stride, window, most)


def _require_buckets(config: Mapping[str, Any]) -> None:
    """Check T5's relative positions: half of the buckets look back, half of these have a distance
    each, and the others share those up to the farthest.

    Raises:
        FileError: One of these parts is empty.
    """
    buckets = _whole(config, "relative_attention_num_buckets", 32)
    far = _whole(config, "relative_attention_max_distance", 128)
    # With fewer, no distance would have a bucket of its own.
    if buckets < 4:
        raise FileError(f"relative_attention_num_buckets is {buckets}: it must be at least 4")
    if far <= buckets // 2:
        raise FileError(
            f"relative_attention_max_distance is {far}: it must be above {buckets // 2}, half of the buckets"
        )


def _whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name, default)
    if type(value) is not int or not 1 <= value <= 1 << 24:
        raise FileError(f"{name} is {str(value)[:40]}: it must be a whole number of at least 1")
    return value


def _start(config: Mapping[str, Any], generation: Mapping[str, Any], vocab: int) -> tuple[int, ...]:
    """The decoder's first tokens, all of them of one file: generation_config.json where that says
    how answers begin, else config.json.

    What begins a decoder's text is BOS where it has no name of its own, and never padding by
    itself.
    """
    firsts = ("decoder_start_token_id", "bos_token_id")
    if any(generation.get(name) is not None for name in firsts):
        said = generation
    else:
        said = config
    name = next((name for name in firsts if said.get(name) is not None), None)
    if name is None:
        raise FileError(
            "decoder_start_token_id is missing, and so is bos_token_id: one of them must say what an answer begins with"
        )
    # A second token may be forced after the first, such as the target's language.
    # The generation's own is not lost where only the config says the first one.
    forced = generation.get("forced_bos_token_id")
    if forced is None:
        forced = said.get("forced_bos_token_id")
    tokens = {name: said[name], "forced_bos_token_id": forced}
    start = {name: token for name, token in tokens.items() if token is not None}
    for name, token in start.items():
        if type(token) is not int or not 0 <= token < vocab:
            raise FileError(f"{name} is {str(token)[:40]}: it must be a token, 0 to {vocab - 1}")
    return tuple(start.values())


def _barred(
    config: Mapping[str, Any], generation: Mapping[str, Any], vocab: int
) -> tuple[int, ...]:
    """Single tokens among the bad words (Marian's padding)."""
    # Longer bad words would need the context; they are left out.
    words = generation.get("bad_words_ids") or config.get("bad_words_ids") or ()
    if not isinstance(words, (list, tuple)):
        return ()
    ids = [w[0] for w in words if isinstance(w, (list, tuple)) and len(w) == 1]
    return tuple(x for x in ids if type(x) is int and 0 <= x < vocab)
