"""What `polydec train words` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, OneOf, keep_ranges
from polydec.lab.train.data import KINDS as TEXTS
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    AdamRate,
    Data,
    Layers,
    MuonRate,
    Resumed,
    SaveEvery,
    Seed,
    Steps,
)

CONTEXT = 1024
"""Bytes of a text that the models read."""

UNITS = ("bytes", "lexinvariant", "word-pooled", "hat", "byte2word", "masked-words", "tokens")
"""Kinds of models; `lab/train/word_kinds/word_kind_names.py` has them."""


@dataclass(frozen=True)
class WordsSpec:
    """What `train_words` makes.

    Attributes:
        kind: What the units are; every kind's law is one of texts, so their held-out figures may be
            compared.
        width: Width of the network; of word-pooled and hat that of the backbone, whose encoder and
            decoder are half or a quarter as wide.
        layers: Layers of the network, or of the backbone.
        longest: Of byte2word the bytes that are read of a word, and the pieces at which it ends at the
            latest.
        length: Length of a row in what the kind reads: bytes, for hat with an end mark a word, or
            tokens; for byte2word pieces with an end mark a word.
    """

    out: Resumed
    data: Data = None
    kind: Annotated[str, OneOf(*UNITS), "of model (docs/words.md)"] = "word-pooled"
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), "rows a step"] = 16
    length: Annotated[int, InRange(16, CONTEXT), "bytes (or tokens) of a row"] = 256
    width: Annotated[int, InRange(64, 4096), "of the network, a multiple of 64"] = 128
    layers: Layers = 4
    slots: Annotated[int, InRange(1, 16), "vectors of a word (word-pooled)"] = 4
    longest: Annotated[
        int, InRange(2, 64), "bytes of a word at most (word-pooled, hat, byte2word, masked-words)"
    ] = 12
    chained: Annotated[
        bool, "a piece of a word sees the one before it, not its state alone (byte2word)"
    ] = False
    kept: Annotated[
        float,
        InRange(0, 1),
        "share of the bytes whose embedding is learned, others drawn anew for every text (lexinvariant)",
    ] = 0.0
    vocab: Annotated[
        int, InRange(260, 65536), "tokens of the vocabulary (tokens, byte2word, masked-words)"
    ] = 1024
    train_mb: Annotated[float, GreaterThan(0), "megabytes of each kind of text to train on"] = 4.0
    held_kb: Annotated[float, GreaterThan(0), NoFlag(), "kilobytes of held-out text"] = 60.0
    texts: Annotated[tuple[str, ...], NoFlag(), "kinds of text"] = TEXTS[:1]
    rate: AdamRate = 3e-3
    muon: MuonRate = 0.02
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        # Encoder and decoder of word-pooled are half as wide, in heads of 32.
        if self.chained and self.kind == "masked-words":
            raise RequestError(
                "chained is true: no piece of a masked word is shown, so leave it out"
            )
        if self.width % 64:
            raise RequestError(f"width is {self.width}: it must be a multiple of 64")


def word_training_summary(result: Mapping[str, Any]) -> str:
    """Held-out bits a byte, and what the run took."""
    size = (
        f"{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s"
    )
    # Masked words have no law of texts.
    if "hidden_words" in result:
        whole = result["hidden_words"]
        slips = result["hidden_words_with_slips"]
        return (
            f"held-out masked words told right: {whole['right']:.1%} of {whole['words']}, with slips in the text "
            f"{slips['right']:.1%}\n{size}; written to {result['out']}"
        )
    bits = ", ".join(f"{kind} {b:.3f}" for kind, b in result["bits_per_byte"].items())
    return f"held-out bits per byte: {bits}\n{size}; written to {result['out']}"


COMMAND = TrainingCommand(
    "words",
    "Train a small model over bytes or words, whatever its units: each is a law of bytes that the engine decodes.",
    WordsSpec,
    "polydec.lab.train.words:train_words",
    sentence=word_training_summary,
)
