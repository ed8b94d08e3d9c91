"""What `polydec train probe` can be told: a dataclass and its defaults for each recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.errors import RequestError
from polydec.base.options import (
    AtLeast,
    CommaList,
    GreaterThan,
    InRange,
    LessThan,
    NoFlag,
    ParseAs,
    keep_ranges,
)
from polydec.lab.train import problems
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    Data,
    Each,
    Kept,
    Longest,
    OfCanvas,
    Out,
    OwnPrompts,
    Problems,
    Samples,
    SaveEvery,
    Seed,
    SmallDraft,
    Steps,
    Target,
    Tasks,
    Varied,
)
from polydec.lab.train.tasks import SHIPPED, TASKS, draw_task

HeadRate = Annotated[float, GreaterThan(0), NoFlag(), "highest learning rate"]


@dataclass(frozen=True)
class PrmSpec:
    """A process reward model, from one solution of each problem that the target draws."""

    recipe: ClassVar[str] = "prm"

    out: Kept
    target: Annotated[str, "the reasoner: a name like --model's"] = "zoo:reasoner"
    kinds: Problems = tuple(problems.KINDS)
    each: Annotated[int, AtLeast(1), "problems of each kind that the target solves"] = 1500
    temperature: Annotated[float, GreaterThan(0), "at which it solves them"] = 0.8
    inner: Annotated[int, AtLeast(1), NoFlag(), "width of the head"] = 64
    steps: Steps = 1500
    rows: Annotated[int, AtLeast(1), NoFlag(), "states a step"] = 256
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        problems.require_kinds(self.kinds)


@dataclass(frozen=True)
class StopHeadSpec:
    """A head that says whether a drafted token will be accepted (SpecDec++).

    Attributes:
        text: None: the target writes out/text.jsonl first.
        mixing: Share of positions at which the draft reads the target's token, not its own.
        tied: One block, applied `depth` times.
    """

    recipe: ClassVar[str] = "stop-head"

    out: Kept
    target: Target = "zoo:smollm2"
    draft: SmallDraft = None
    data: Data = None
    text: Samples = None
    each: Each = 30
    max_tokens: Longest = 128
    temperature: Annotated[float, AtLeast(0), "at which the head will be used (0: greedy)"] = 1.0
    mixing: Annotated[
        float,
        AtLeast(0),
        LessThan(1),
        "share of the target's own tokens in what the draft reads",
    ] = 0.15
    weight: Annotated[float, GreaterThan(0), "of rejections in the loss"] = 6.0
    depth: Annotated[int, InRange(0, 16), "blocks of the head"] = 3
    tied: Annotated[bool, "one block, applied depth times (as the authors' code has it)"] = False
    rounds: Annotated[int, AtLeast(1), NoFlag(), "draws of the draft's tokens for each text"] = 2
    steps: Steps = 400
    rows: Annotated[int, AtLeast(1), NoFlag(), "positions a step"] = 512
    rate: HeadRate = 1e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)


@dataclass(frozen=True)
class JudgeSpec:
    """A judge of tokens that the target would not have written (judge decoding).

    Attributes:
        text: None: the target writes out/text.jsonl first, greedily.
        kinds: Of problems that both models solve and a checker labels, in place of `data` and
            `text`.
    """

    recipe: ClassVar[str] = "judge"

    out: Kept
    target: Target = "zoo:tiny"
    draft: SmallDraft = None
    data: Data = None
    text: Samples = None
    kinds: Annotated[
        tuple[str, ...],
        ParseAs(CommaList),
        "of chain, make, order: both models solve such problems, and a checker labels every token (default: the target "
        "goes on from tokens of the draft's, and its results say which were right)",
    ] = ()
    replies: Annotated[
        bool,
        "with kinds: learn from all tokens of both models' solutions, as published (default: from the draft's tokens where the "
        "target would put others, as a judge is asked of those alone)",
    ] = False
    each: Each = 30
    max_tokens: Longest = 96
    tries: Annotated[int, AtLeast(1), "drafted tokens that are tried in each answer"] = 4
    weight: Annotated[float, GreaterThan(0), NoFlag(), "of wrong tokens in the loss"] = 2.0
    steps: Steps = 300
    rate: HeadRate = 1e-2
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.kinds:
            problems.require_kinds(self.kinds)
            if self.text is not None:
                raise RequestError(
                    f"text is {self.text!r}: with kinds the solutions of both models are labelled, so leave it out"
                )
        elif self.replies:
            raise RequestError("replies is true: name the kinds of problems that both models solve")

    @property
    def temperature(self) -> float:
        """Answers are greedy: that is what a result is compared with."""
        return 0.0


@dataclass(frozen=True)
class RouterSpec:
    """A head on a draft model's states that says which of its steps the target would better."""

    recipe: ClassVar[str] = "router"

    out: Kept
    draft: Annotated[str, "the small reasoner: a name like --draft's"]
    target: Annotated[str, "the reasoner: a name like --model's"] = "zoo:reasoner"
    reward: Annotated[str, "a process reward model of the target's"] = "zoo:reasoner-prm"
    kinds: Problems = tuple(problems.KINDS)
    each: Annotated[int, AtLeast(1), "problems of each kind that both solve together"] = 400
    temperature: Annotated[float, AtLeast(0), "at which they solve them"] = 0.6
    inner: Annotated[int, AtLeast(1), NoFlag(), "width of the head"] = 32
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), NoFlag(), "states a step"] = 256
    rate: HeadRate = 1e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        problems.require_kinds(self.kinds)


@dataclass(frozen=True)
class TextRouterSpec:
    """A language model that reads the text and says which steps the target would better."""

    recipe: ClassVar[str] = "text-router"

    out: Kept
    draft: Annotated[str, "the small reasoner: a name like --draft's"]
    target: Annotated[str, "the reasoner: a name like --model's"] = "zoo:reasoner"
    reward: Annotated[
        str | None,
        "a process reward model of the target's, which values the steps (default: the checker of the problems does)",
    ] = None
    start: Annotated[
        str | None, "the language model that becomes the router (default: the draft)"
    ] = None
    kinds: Problems = tuple(problems.KINDS)
    each: Annotated[int, AtLeast(1), "problems of each kind that both solve together"] = 400
    temperature: Annotated[float, AtLeast(0), "at which they solve them"] = 0.6
    head: Annotated[int, AtLeast(1), NoFlag(), "numbers between the state and the chance"] = 32
    steps: Steps = 300
    rows: Annotated[int, AtLeast(2), NoFlag(), "texts a step, half of them of each class"] = 32
    rate: HeadRate = 5e-4
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        problems.require_kinds(self.kinds)


@dataclass(frozen=True)
class OutcomeSpec:
    """A head that says of each next token whether the finished text will be as wanted.

    Attributes:
        text: None: the target writes out/text.jsonl first.
        holds: What is wanted of a finished text, with least and most.
    """

    recipe: ClassVar[str] = "outcome"

    out: Kept
    target: Target = "zoo:tiny"
    data: Data = None
    text: Samples = None
    each: Each = 100
    max_tokens: Longest = 64
    temperature: Annotated[float, AtLeast(0), "at which the target writes"] = 1.0
    holds: Annotated[str, "a piece of text that is wanted in a finished text"] = ""
    least: Annotated[int, AtLeast(0), "tokens wanted of it at least, its end counted"] = 0
    most: Annotated[int, AtLeast(0), "tokens wanted of it at most (0: any number)"] = 0
    inner: Annotated[int, AtLeast(1), "units of the head"] = 64
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), NoFlag(), "positions a step"] = 512
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        if not self.holds and not self.least and not self.most:
            raise RequestError(
                "holds is empty: say what is wanted of a finished text (holds, least, most)"
            )


@dataclass(frozen=True)
class ValueSpec:
    """A network that foretells what the answer on a half-filled canvas will be worth."""

    recipe: ClassVar[str] = "value"

    out: Out
    reward: Annotated[str, "directory of the reward of texts that it foretells"]
    target: Annotated[str, "a masked-diffusion model: a name like --model's"] = "zoo:diffusion"
    tasks: Tasks = SHIPPED
    each: Annotated[int, AtLeast(1), "answers of each task"] = 60
    max_tokens: OfCanvas = 13
    temperature: Annotated[float, AtLeast(0), "at which the model answers"] = 1.0
    width: Annotated[int, InRange(4, 1 << 12), "of the network"] = 32
    rows: Annotated[int, AtLeast(1), "canvases a step"] = 64
    steps: Steps = 600
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50
    varied: Varied = False

    def __post_init__(self) -> None:
        keep_ranges(self)


@dataclass(frozen=True)
class FilterSpec:
    """A filter of the confidences of a block (Learn2PD).

    Attributes:
        hidden: 0, as many as positions, is as published.
        written: It reads the confidence where a token stands, as published, in place of 1.
    """

    recipe: ClassVar[str] = "filter"

    out: Out
    target: Annotated[str, "a masked-diffusion model: a name like --model's"] = "zoo:diffusion"
    tasks: Tasks = SHIPPED
    each: Annotated[int, AtLeast(1), "answers of each task, or kind of prompt"] = 250
    max_tokens: OfCanvas = 13
    block: Annotated[
        int, AtLeast(1), "positions of a block: of the filter, and of learn2pd then"
    ] = 13
    hidden: Annotated[int, AtLeast(0), "units of its hidden layer (0: as many as positions)"] = 64
    steps: Steps = 6000
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50
    varied: Varied = False
    data: OwnPrompts = None
    written: Annotated[bool, "it reads the model's confidence in written tokens, too"] = False

    def __post_init__(self) -> None:
        keep_ranges(self)
        if not self.tasks:
            raise RequestError(f"tasks is empty: name some of {', '.join(TASKS)}")
        for name in self.tasks:
            draw_task(name, 0, 0)


@dataclass(frozen=True)
class RewardSpec:
    """A classifier that says which of two files a text is like."""

    recipe: ClassVar[str] = "reward"

    out: Out
    good: Annotated[str, "a file of texts that are worth much, one a line"]
    bad: Annotated[str, "a file of texts that are worth little, one a line"]
    size: Annotated[int, InRange(16, 1 << 20), "weights of the classifier"] = 4096
    order: Annotated[int, InRange(1, 8), "bytes of the longest sequences that it reads"] = 3
    steps: Steps = 400
    rate: HeadRate = 0.1
    most: Annotated[int, AtLeast(2), "lines of a file that are read at most"] = 20_000
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)


ProbeSpec = (
    PrmSpec
    | StopHeadSpec
    | JudgeSpec
    | RouterSpec
    | TextRouterSpec
    | OutcomeSpec
    | ValueSpec
    | FilterSpec
    | RewardSpec
)


def _recipe(spec: type[ProbeSpec], what: str) -> TrainingCommand:
    return TrainingCommand(
        f"probe --recipe {spec.recipe}",
        f"Train {what}; prints what was measured as one JSON object.",
        spec,
        "polydec.lab.train.probe:train_probe",
    )


RECIPES = (
    _recipe(FilterSpec, "the filter of learn2pd from a model's own runs"),
    _recipe(JudgeSpec, "the probe that keeps right tokens for judge-decoding"),
    _recipe(OutcomeSpec, "the head of conditional-beam on a model's own texts"),
    _recipe(PrmSpec, "a process reward model for a reasoner on its own solutions"),
    _recipe(RewardSpec, "a classifier of texts, a reward for svdd-reward"),
    _recipe(RouterSpec, "the router of arbitrage on a draft model's own states"),
    _recipe(StopHeadSpec, "the head that ends drafts for specdec-plus-plus"),
    _recipe(
        TextRouterSpec, "the router of arbitrage that reads the text, a language model of its own"
    ),
    _recipe(ValueSpec, "the value network of svdd-mc from a model's own runs"),
)
"""One command for each paper; what it trains is `train/probes/<recipe>.py`."""
