"""A reader that reads a word in an image at once: an encoder of pixels and a head (CPPD, LISTER,
MDiff4STR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.core.rng import Rng
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.images import PixelStrip, StripShape
from polydec.models.formats.seq2seq import (
    Seq2SeqConfig,
    T5Shape,
    read_seq2seq_config,
    reader_config,
)
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import WordReaderFields
from polydec.models.nets.reading_heads import HEADS
from polydec.models.nets.reading_layers import ReadingShape
from polydec.models.nets.seq2seq import Seq2SeqEncoder, build_strip_encoder

KIND = artefact.ArtefactKind("word-reader", "word reader", "word_reader.safetensors", "word-reader")
BEGUN = 1
"""Tokens that stand before every word: the mark that begins a text."""
HEAD = "head."
"""What the names of the head's tensors begin with; the others are the encoder's."""


@dataclass(frozen=True)
class WordReaderShape:
    """Sizes of a reader.

    Attributes:
        encoder: Of the network that reads the image; it has no decoder.
        strip: How an image is cut.
        pixels: Units of the map that reads a window of pixels.
        longest: Letters of a word that it was trained for.
        rounds: Rounds in which a head that walks refines what it reads. Default 0.
        distances: Whether a head that walks also scores how far it goes. Default False.
        joins: Layers in which a head that counts joins places and letters. Default 1.
    """

    encoder: T5Shape
    strip: StripShape
    pixels: int
    longest: int
    rounds: int = 0
    distances: bool = False
    joins: int = 1

    @property
    def encoder_config(self) -> Seq2SeqConfig:
        """Of the encoder, as a published one would be read."""
        return read_seq2seq_config(reader_config(self.encoder, self.strip, 0, 1), {})

    @property
    def head_shape(self) -> ReadingShape:
        """Of the head."""
        e = self.encoder
        sizes = (e.vocab, e.width, e.heads, self.longest, self.strip.most)
        return ReadingShape(*sizes, self.rounds, self.distances, self.joins)


@dataclass(frozen=True)
class ReadingQuery:
    """What a reader is asked: a word.

    Attributes:
        strip: The image.
        read: Makes logits of letters, ``[T, V]``, of the head and the states of the image.
    """

    strip: PixelStrip
    read: Callable[[Any, Tensor], Tensor]


def usual_reading(head: Any, states_NW: Tensor, rng: Rng | None = None) -> Tensor:
    """Read a word as the head does where nobody says how.

    Args:
        head: A `ReadingHead`.
        states_NW: States of the image.
        rng: Not used.

    Returns:
        Logits of its letters, ``[T, V]``.
    """
    return head.word_logits(states_NW)


@dataclass(frozen=True, eq=False)
class WordReader:
    """A trained reader. Its queries are images and its answers the logits of their words' letters.

    Attributes:
        vocab: Of the model that it reads for.
        reading: Which head it has, by the name of its method.
        shape: Its sizes.
        tensors: Of the encoder by their published names, and of the head behind `HEAD`.
    """

    called: ClassVar[str] = "a reader of words"
    kind: ClassVar[str] = "word-reader"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    reading: str
    shape: WordReaderShape
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        target.vocab.require_same(self.vocab, "the target of the word reader")

    def check_image(self, strip: PixelStrip) -> None:
        """Raise RequestError for an image that it does not read."""
        own = self.shape.strip
        if (strip.height, strip.stride) != (own.height, own.stride) or len(strip) > own.most:
            raise RequestError(
                f"source is an image of {len(strip)} positions of {strip.stride} x {strip.height} pixels: this word reader "
                f"reads at most {own.most} of {own.stride} x {own.height}"
            )

    @cached_property
    def strip_encoder(self) -> Seq2SeqEncoder:
        """The network that reads images. Raises FileError where a tensor is missing or damaged."""
        return build_strip_encoder(self.shape.encoder_config, self.tensors)

    @cached_property
    def reading_head(self) -> nn.Module:
        """The head that reads words of its states."""
        # Made once, when somebody first reads: weights stay as they were saved.
        head = HEADS[self.reading](self.shape.head_shape)
        head.load_state_dict(
            {k.removeprefix(HEAD): v for k, v in self.tensors.items() if k.startswith(HEAD)}
        )
        return head.eval()

    @property
    def cost(self) -> float:
        """Numbers that a pass reads."""
        return float(sum(t.numel() for t in self.tensors.values()))

    @torch.inference_mode()
    def forward(self, queries: Sequence[ReadingQuery]) -> list[Tensor]:
        """Read images; the logits of each one's letters, ``[T, V]``, in order."""
        # Images of one pass share the encoder's products; heads read each by itself.
        states, rows = self.strip_encoder.source_states([q.strip for q in queries])
        return [q.read(self.reading_head, states[r]) for q, r in zip(queries, rows, strict=True)]


def tensor_shapes(shape: WordReaderShape, reading: str) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a reader.

    Args:
        shape: Its sizes.
        reading: Which head it has.

    Returns:
        Shapes by the tensors' names.
    """
    e = shape.encoder
    inner = e.heads * e.head
    # T5's names for the encoder, so that a target's weights fit as they are.
    strip = shape.strip
    out: dict[str, tuple[int, ...]] = {
        "strips.into.weight": (shape.pixels, strip.height * strip.window),
        "strips.into.bias": (shape.pixels,),
        "strips.out.weight": (e.width, shape.pixels),
        "strips.out.bias": (e.width,),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, e.heads),
        "encoder.final_layer_norm.weight": (e.width,),
    }
    for i in range(e.first):
        at = f"encoder.block.{i}.layer"
        out |= {f"{at}.0.SelfAttention.{x}.weight": (inner, e.width) for x in "qkv"}
        out |= {f"{at}.0.SelfAttention.o.weight": (e.width, inner)}
        out |= {f"{at}.{j}.layer_norm.weight": (e.width,) for j in (0, 1)}
        out |= {
            f"{at}.1.DenseReluDense.wi.weight": (e.inner, e.width),
            f"{at}.1.DenseReluDense.wo.weight": (e.width, e.inner),
        }
    # On the meta device a module has shapes and takes no memory.
    with torch.device("meta"):
        head = HEADS[reading](shape.head_shape)
    return out | {HEAD + name: tuple(t.shape) for name, t in head.state_dict().items()}


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[WordReader, ...]:
    """Make random ones for tests.

    Args:
        vocab: The target's vocabulary.
        width: Not read: a reader has a network of its own.
        draft_width: Not read.

    Returns:
        One of each head.
    """
    strip = StripShape(8, 4, 8, 64)
    return tuple(
        WordReader(vocab, reading, shape, _random_tensors(tensor_shapes(shape, reading), seed))
        for reading in HEADS
        # A head that does not walk has no rounds; with this seed a walk reads another word in each.
        for seed in [11 if reading == "lister" else 4]
        for shape in [
            WordReaderShape(
                T5Shape(vocab.size, 8, 4, 8, 1, 1), strip, 6, 24, int(reading == "lister")
            )
        ]
    )


def _random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Tensors with which letters differ from place to place: norms begin as ones, and biases as
    zeros."""
    g = torch.Generator().manual_seed(seed)
    out = dict[str, Tensor]()
    for name, size in shapes.items():
        if name.endswith("bias") and len(size) == 1:
            out[name] = torch.zeros(*size)
        elif name.endswith(("norm.weight", "first.weight", "second.weight")):
            out[name] = torch.ones(*size)
        else:
            out[name] = torch.randn(*size, generator=g) * 2
    return out


def save(path: str | Path, reader: WordReader, about: Mapping[str, Any]) -> None:
    """Write word_reader.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        reader: The reader.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    shape = reader.shape
    e = shape.encoder
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float() for name, t in reader.tensors.items()},
        {
            **about,
            "vocab_size": e.vocab,
            "tokenizer": reader.vocab.tokenizer,
            "reading": reader.reading,
            "width": e.width,
            "head": e.head,
            "inner": e.inner,
            "first": e.first,
            "pixels": shape.pixels,
            "longest": shape.longest,
            "rounds": shape.rounds,
            "distances": shape.distances,
            "joins": shape.joins,
            "strip_height": shape.strip.height,
            "strip_stride": shape.strip.stride,
            "strip_window": shape.strip.window,
            "strip_most": shape.strip.most,
        },
    )


def load(path: str | Path) -> WordReader:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(WordReaderFields, config, artefact.CONFIG)
        strip = StripShape(c.strip_height, c.strip_stride, c.strip_window, c.strip_most)
        encoder = T5Shape(c.vocab_size, c.width, c.head, c.inner, c.first, 1)
        sizes = (encoder, strip, c.pixels, c.longest)
        shape = WordReaderShape(*sizes, c.rounds, c.distances, c.joins)
        # What a window may be is checked as of a published config, before an image comes.
        _ = shape.encoder_config
        whole = artefact.read_float_tensors(tensors, KIND, tensor_shapes(shape, c.reading))
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return WordReader(vocab, c.reading, shape, whole)
