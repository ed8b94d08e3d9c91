"""What `polydec train lm` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, OneOf, keep_ranges
from polydec.lab.train.data import KINDS
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, OwnPairs, QuestionDropout, Resumed, Seed, StartLora
from polydec.models.formats.superlinear import SuperlinearRule

if TYPE_CHECKING:  # loads torch, which a list of flags does not need
    from polydec.lab.train.exits import EarlyExitLosses


@dataclass(frozen=True)
class LMPreset:
    """Sizes of a network, and how it is trained.

    Attributes:
        shape: Sizes of the network.
        schedule: How the run is driven.
        rows: Rows of `length` tokens a step; at the end of a run they are fewer and longer.
        length: Tokens of a row.
    """

    shape: LlamaShape
    schedule: TrainingSchedule
    rows: int = 16
    length: int = 256


PRESETS: Mapping[str, LMPreset] = {
    "tiny": LMPreset(LlamaShape(4096), TrainingSchedule(1400, 3e-3, muon=0.02, save_every=50)),
    "tiny-draft": LMPreset(
        LlamaShape(4096, width=48, layers=3, heads=3, kv_heads=1, inner=128),
        TrainingSchedule(300, 6e-3, muon=0.02, save_every=50),
    ),
}


OBJECTIVES = ("next-token", "meap", "cm3", "tokenunify")
"""What a step can learn of the text; `lab/train/objectives/objective_names.py` has them."""
OF_PAIRS = ("next-token", "meap")
"""Those that learn answers to questions, too."""


@dataclass(frozen=True)
class LMSpec:
    """What `train_lm` makes.

    Attributes:
        teacher: A model whose laws are learned in place of the text's tokens (forward KL); it
            brings its tokenizer.
        start: A model to begin with; it brings tokenizer and shape.
        shares: Shares of prose, code and dialogue in every step's rows.
        long: Share of the steps, at the end, with rows as long as the context.
        early_exit: See exits.py.
        layer_dropout: See exits.py.
        exits: See exits.py.
        compiled: Whether the step is compiled: faster, after a minute or two.
    """

    out: Resumed
    data: Data = None
    pairs: OwnPairs = None
    drop: QuestionDropout = 0.0
    preset: Annotated[str, OneOf(*PRESETS), "sizes and schedule"] = "tiny"
    steps: Annotated[int | None, AtLeast(1), "optimiser steps (default: the preset's)"] = None
    tokenizer: Annotated[
        str | None, "directory or zoo:NAME whose tokenizer to use (default: train one)"
    ] = None
    teacher: Annotated[str | None, "directory or zoo:NAME of a model whose laws to learn"] = None
    shares: Annotated[
        tuple[int, ...], AtLeast(1), NoFlag(), "of each kind of text, in twentieths"
    ] = (8, 7, 5)
    train_mb: Annotated[
        tuple[float, ...], GreaterThan(0), "megabytes of prose, code and dialogue to train on"
    ] = (10.0, 8.0, 6.0)
    held_kb: Annotated[
        float, GreaterThan(0), NoFlag(), "kilobytes of held-out text of each kind"
    ] = 250.0
    order: Annotated[int, AtLeast(1), NoFlag(), "of the n-gram that is measured beside it"] = 5
    bf16: Annotated[bool | None, NoFlag(), "16-bit arithmetic (none: where the machine has it)"] = (
        None
    )
    long: Annotated[float, InRange(0, 1), NoFlag(), "the share of the steps with long rows"] = 0.2
    schedule: Annotated[TrainingSchedule | None, NoFlag(), "in place of the preset's"] = None
    shape: Annotated[LlamaShape | None, NoFlag(), "in place of the preset's"] = None
    start: Annotated[
        str | None, "directory or zoo:NAME to begin with (default: random weights)"
    ] = None
    lora: StartLora = 0
    layers: Annotated[
        int | None, AtLeast(1), "first layers of --start, or more, that begin as identities"
    ] = None
    superlinear: Annotated[
        int,
        InRange(0, 64),
        "spans of keys that a query searches for and reads (superlinear attention; 0: it reads all keys)",
    ] = 0
    near: Annotated[
        int, InRange(0, 1024), "stripes of anchors that a window of the last keys stands for"
    ] = 0
    search_power: Annotated[
        float, InRange(0.25, 1), "how the number of anchors grows with the text"
    ] = 0.5
    span_power: Annotated[float, InRange(0, 1), "how a span's length grows with the text"] = 0.5
    behind: Annotated[
        float, InRange(0, 64), "keys of a span before its anchor, times the text's power"
    ] = 2.0
    ahead: Annotated[float, InRange(0, 64), "keys of a span after its anchor, likewise"] = 0.0
    search_scale: Annotated[float, InRange(0, 1e6), "what scores of anchors are multiplied by"] = (
        1.0
    )
    objective: Annotated[
        str, OneOf(*OBJECTIVES), "what a step learns of a text (docs/training.md#objectives)"
    ] = "next-token"
    mask: Annotated[
        float, InRange(0, 0.9), "share of the input that meap masks (of answers, with --pairs)"
    ] = 0.15
    second: Annotated[
        int, AtLeast(0), "tokens above which an answer of --pairs has a masked copy, with meap"
    ] = 50
    spans: Annotated[float, InRange(0, 7), "spans of a row that cm3 moves, in the mean"] = 1.0
    mixture: Annotated[
        tuple[float, ...],
        InRange(0, 1),
        "shares of masked, next and later tokens of tokenunify, together 1",
    ] = (0.3, 0.4, 0.3)
    stages: Annotated[
        bool, "masked, next and later tokens of tokenunify one after the other, by these shares"
    ] = False
    early_exit: Annotated[float, InRange(0, 1), "scale of the early-exit loss (0: off)"] = 0.0
    layer_dropout: Annotated[float, InRange(0, 0.5), "how often the last layer is left out"] = 0.0
    exits: Annotated[
        tuple[int, ...], NoFlag(), "depths of equal weight, in place of early_exit"
    ] = ()
    compiled: Annotated[bool, "torch.compile (needs a C++ compiler)"] = False
    kinds: Annotated[tuple[str, ...], NoFlag(), "of text"] = KINDS
    seed: Seed = 0
    save_every: Annotated[
        int | None,
        AtLeast(1),
        "steps between checkpoints (none: the preset's 50); Ctrl-C saves by itself",
    ] = None

    def __post_init__(self) -> None:
        keep_ranges(self)
        # Each kind of text has a share and a size of its own.
        if not len(self.shares) == len(self.train_mb) == len(self.kinds):
            raise RequestError(
                f"shares and train_mb must have a value for each of {', '.join(self.kinds)}"
            )
        # A teacher and early exits bring a loss of their own.
        if self.objective != "next-token" and (self.teacher is not None or self.depths.on):
            raise RequestError(
                f"objective is {self.objective!r}: with a teacher or early exits next tokens are learned, so leave it out"
            )
        # An adapter changes the matrices of one checkpoint, and adds neither layers nor a second model.
        if self.lora and (
            self.start is None or self.layers is not None or self.objective == "tokenunify"
        ):
            raise RequestError(
                f"lora is {self.lora}: an adapter changes the checkpoint of --start, with its own layers and without "
                "tokenunify's heads"
            )
        # Thin matrices are added to those that the checkpoint has, and a search is a new one.
        if self.superlinear and self.lora:
            raise RequestError(
                f"superlinear is {self.superlinear}: an adapter adds no queries that search, so leave lora out"
            )
        # Pairs have questions; running text has none that could be left out.
        if self.drop and self.pairs is None:
            raise RequestError(
                f"drop is {self.drop}: running text has no questions to leave out, so give --pairs"
            )
        if self.pairs is not None and self.data is not None:
            raise RequestError(
                f"data is {self.data!r} beside pairs: tokenizer and answers come from the pairs, so leave it out"
            )
        if self.pairs is not None and (
            self.objective not in OF_PAIRS or self.teacher is not None or self.depths.on
        ):
            raise RequestError(
                f"pairs is {self.pairs!r}: answers are learned with the objectives {' and '.join(OF_PAIRS)}, "
                "without a teacher and without early exits"
            )
        _ = self.depths  # says what is wrong with exits

    @property
    def search_rule(self) -> SuperlinearRule | None:
        """Which keys a query searches for; None: it reads all, or what --start does."""
        if not self.superlinear:
            return None
        return SuperlinearRule(
            self.superlinear,
            self.near,
            self.search_power,
            self.span_power,
            self.behind,
            self.ahead,
            self.search_scale,
        )

    @property
    def depths(self) -> EarlyExitLosses:
        """What a step learns besides the loss of the full network."""
        # Imported here: it loads torch, which a list of flags does not need.
        from polydec.lab.train.exits import EarlyExitLosses

        return EarlyExitLosses(self.early_exit, self.layer_dropout, self.exits)


def lm_training_summary(result: Mapping[str, Any]) -> str:
    """What was measured on held-out text or pairs, and what the run took."""
    if "pairs" in result:
        table = answer_figures(result)
    else:
        table = byte_figures(result)
    return (
        f"{table}\n{result['parameters']:,} parameters, {result['tokens']:,} tokens, "
        f"{result['seconds']:.0f} s; written to {result['out']}"
    )


def answer_figures(result: Mapping[str, Any]) -> str:
    """How likely held-out answers are, behind their questions and without these."""
    # Small data may have no held-out pair.
    if result["held_out_nats"] is None:
        return f"{result['pairs']:,} pairs, none of them held out"
    return (
        f"held-out answers, nats a token: {result['held_out_nats']:.3f}, "
        f"without their questions {result['held_out_nats_without']:.3f}"
    )


def byte_figures(result: Mapping[str, Any]) -> str:
    """A table of held-out bits per byte next to those of the n-gram."""
    model = result["bits_per_byte"]
    # The order of the n-gram is part of the figure's name.
    key = next(k for k in result if k.startswith("bits_per_byte_"))
    order = key.removeprefix("bits_per_byte_").removesuffix("_gram")
    rows = [
        ("held-out bits per byte", "model", f"{order}-gram"),
        *((kind, f"{bits:.3f}", f"{result[key][kind]:.3f}") for kind, bits in model.items()),
    ]
    return "\n".join(f"{kind:<22}  {ours:<6}  {theirs}" for kind, ours, theirs in rows)


COMMAND = TrainingCommand(
    "lm",
    "Train a small language model from text: tokenizer, packing, schedule, held-out bits per byte beside a 5-gram.",
    LMSpec,
    "polydec.lab.train.lm:train_lm",
    spelled={"compiled": "--compile"},
    sentence=lm_training_summary,
)
