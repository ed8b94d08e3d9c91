"""What `polydec train heads`, `eagle` and `probes` can be told; their COMMANDs are in files here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

from polydec.base import plugins
from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.fields import (
    Data,
    Each,
    Kept,
    Longest,
    Samples,
    SaveEvery,
    Seed,
    Steps,
    Target,
)

SOME = ("tokens", "every", "start", "copies", "layers", "enters")
"""Fields that mean nothing to some kinds."""

ENTRY = "polydec.lab.train.states:train_states"
KIND_NAMES = {
    "eagle": (
        "eagle",
        "eagle-3",
        "eagle-3-narrow",
        "chimera",
        "falcon",
        "longspec",
        "eagle-published",
        "eagle-3-published",
    ),
    "heads": (
        "medusa",
        "hydra",
        "hydra++",
        "hydra++-deep",
        "hydra++-own",
        "clover",
        "medusa-published",
    ),
    "probes": ("ppd", "hidden-transfer", "lud", "mtp"),
}
"""By command the kinds that suit it; `kinds/` has all of them. They stand here as well, since its
modules load torch, which a list of flags does not need."""
KIND_FOLDER = str(Path(__file__).parents[1] / "kinds")
OWN_KINDS = tuple(name for names in KIND_NAMES.values() for name in names)
KIND_HELPS = {
    "eagle": "eagle, eagle-3, eagle-3-narrow, chimera, falcon, longspec; for vLLM and SGLang "
    "eagle-published, eagle-3-published",
    "heads": "medusa, hydra, hydra++, hydra++-deep (four blocks a head), hydra++-own (and a "
    "vocabulary matrix each), clover; for vLLM medusa-published",
    "probes": "ppd, hidden-transfer, lud or mtp",
}
"""What each command says of these."""


def other_kinds() -> tuple[str, ...]:
    """Kinds that no list here has: those of further files of `kinds/`, each named for its kind, and of
    other packages.
    """
    files = tuple(file.name.replace("_", "-") for file in iter_modules([KIND_FOLDER]))
    further = tuple(name for name in files if name not in OWN_KINDS)
    return (*further, *plugins.plugin_packages("students", (*OWN_KINDS, *further)))


def kind_help(command: str) -> str:
    """Say which kinds there are.

    Args:
        command: "eagle", "heads" or "probes".

    Returns:
        The kinds that suit the command, and those that no command speaks of.
    """
    others = other_kinds()
    return "; ".join([KIND_HELPS[command], *([", ".join(others)] if others else [])])


@dataclass(frozen=True)
class StatesSpec:
    """What `train_states` makes.

    Attributes:
        text: A file of samples; without it the target writes out/text.jsonl first, at
            `temperature`.
        levels: How many tokens ahead are guessed; 0: as the kind has it.
        tokens: How many of the most frequent tokens a head of its own has; 0: those of `start`,
            else all.
        mixed: Each prompt at a temperature of its own (as for `polydec train draft`), in place of
            `temperature`.
        texts: Tokens of others' texts, which the target reads: that is quicker than writing.
        start: A draft model of the target's width, whose head stays (None: new weights over the
            target's head). LongSpec goes on with such a drafter, as published on long pieces at a
            hundredth of the rate.
        bf16: The drafter's arithmetic; None: 16 bits where this machine is measured to be faster
            with them.
        compute: See `polydec.load`.
    """

    out: Kept
    kind: Annotated[str, "which drafter"]
    target: Target = "zoo:tiny"
    data: Data = None
    text: Samples = None
    each: Each = 60
    max_tokens: Longest = 128
    temperature: Annotated[
        float, AtLeast(0), NoFlag(), "at which answers are written (0: greedy)"
    ] = 0.0
    levels: Annotated[
        int, InRange(0, 16), "levels that training unrolls (0: as the kind has it)"
    ] = 0
    decay: Annotated[
        float, GreaterThan(0), NoFlag(), "weight of each level's loss beside the one before it"
    ] = 0.8
    tokens: Annotated[int, AtLeast(0), "tokens of a head of its own (eagle-3; 0: all)"] = 0
    steps: Steps = 500
    rows: Annotated[int, AtLeast(1), "pieces of text a step"] = 8
    length: Annotated[int, AtLeast(1), "tokens of a piece of text"] = 48
    rate: Annotated[float, GreaterThan(0), "highest learning rate"] = 2e-3
    seed: Seed = 0
    save_every: SaveEvery = 100
    mixed: Annotated[bool, "answers at several temperatures, not greedy alone"] = False
    texts: Annotated[
        int, AtLeast(0), "tokens of others' texts that the target reads to learn from"
    ] = 0
    start: Annotated[
        str | None,
        "one-layer draft model to begin with (eagle-3-narrow), or a drafter to go on with (longspec)",
    ] = None
    muon: Annotated[
        float, AtLeast(0), "highest learning rate of Muon for all matrices (0: AdamW)"
    ] = 0.0
    every: Annotated[
        int, AtLeast(1), "levels below the first are trained behind every so many tokens"
    ] = 1
    copies: Annotated[
        int, InRange(1, 16), "copies of each prompt token, whose laws are averaged (ppd)"
    ] = 1
    layers: Annotated[int, InRange(1, 16), "layers of the drafter, one behind another (eagle)"] = 1
    enters: Annotated[
        tuple[int, ...],
        InRange(1, 4096),
        "layer that each state enters, such as 1,2,3 (hidden-transfer; none: the middle one)",
    ] = ()
    bf16: Annotated[bool | None, NoFlag(), "16-bit arithmetic (none: where the machine has it)"] = (
        None
    )
    compute: Annotated[str | None, "the target's arithmetic while it writes and reads"] = None

    def __post_init__(self) -> None:
        from polydec.lab.train.kinds import (
            KINDS,  # loads torch, which a list of flags does not need
        )

        if self.kind not in KINDS:
            raise RequestError(f"kind is {self.kind!r}: it must be one of {', '.join(KINDS)}")
        keep_ranges(self)
        # A field that the kind does not read must have its default, else it would be ignored in
        # silence.
        for name in SOME:
            if (
                getattr(self, name) != getattr(StatesSpec, name)
                and name not in KINDS[self.kind].takes
            ):
                takers = ", ".join(other for other, kind in KINDS.items() if name in kind.takes)
                raise RequestError(
                    f"{name} is {getattr(self, name)!r}: kind {self.kind} does nothing with it, leave it out "
                    f"({takers} would take it)"
                )
        # A draft model's head has its own tokens.
        if self.start is not None and self.tokens:
            raise RequestError(
                f"start is {self.start!r} and tokens {self.tokens}: start brings its own, so leave tokens out"
            )


OF_EAGLES = (
    "tokens",
    "rows",
    "mixed",
    "texts",
    "start",
    "muon",
    "every",
    "compute",
    "layers",
)
"""Fields that only `polydec train eagle` has flags for."""
