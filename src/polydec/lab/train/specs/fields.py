"""Fields that several kinds of training have: their types, ranges and help."""

from __future__ import annotations

from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, CommaList, GreaterThan, InRange, NoFlag, ParseAs

Out = Annotated[str, "directory to write"]
Resumed = Annotated[str, "directory to write (its state.pt lets an interrupted run go on)"]
Kept = Annotated[str, "directory to write; text.jsonl in it keeps what the target wrote"]
Target = Annotated[str, "the target: a name like --model's"]
SmallDraft = Annotated[str | None, "the draft (default: the embedded one's)"]
Data = Annotated[
    str | None,
    "your own text: .txt, .jsonl (text, prompt, question and answer, turns, messages), a folder of these or of a data set "
    "(Arrow, Parquet); or `sample`, which travels along (default: what the environment's POLYDEC_DATA names, else sample)",
]
OwnPrompts = Annotated[
    str | None,
    "your own text, whose prompts are answered in place of tasks: .txt, .jsonl or a folder, as for the other commands",
]
OwnPairs = Annotated[
    str | None,
    "your own questions with answers, learned in place of the default: .jsonl (source and target, or a question with "
    "its answer), a folder of these or of a data set (Arrow, Parquet)",
]
QuestionDropout = Annotated[
    float,
    InRange(0, 1),
    "share of the questions that are left out, so that guidance knows the law without one (0: none)",
]
Samples = Annotated[str | None, "JSON lines of samples (default: the target writes them)"]
Each = Annotated[int, AtLeast(1), "prompts of each kind that the target answers"]
Longest = Annotated[int, AtLeast(1), "of an answer"]
OfCanvas = Annotated[int, AtLeast(1), "of a canvas"]
Tasks = Annotated[
    tuple[str, ...], ParseAs(CommaList), "names of lab/train/tasks.py, such as copy,slots,count"
]
Problems = Annotated[tuple[str, ...], ParseAs(CommaList), "of chain, make, order"]
Start = Annotated[str | None, "directory or zoo:NAME to begin with (default: random)"]
Steps = Annotated[int, AtLeast(1), "optimiser steps"]
TasksAStep = Annotated[int, AtLeast(1), "tasks a step"]
AnswersAStep = Annotated[int, AtLeast(1), "answers a step"]
SaveEvery = Annotated[
    int,
    AtLeast(1),
    "steps between checkpoints, for the case of a power cut; Ctrl-C saves by itself",
]
Width = Annotated[int, AtLeast(32), "of the network"]
Layers = Annotated[int, AtLeast(1), "of the network"]
Rate = Annotated[float, "highest learning rate"]
AdamRate = Annotated[float, "highest learning rate of AdamW"]
MuonRate = Annotated[float, "highest learning rate of Muon, for the layers (0: AdamW)"]
HeadRate = Annotated[float, GreaterThan(0), NoFlag(), "highest learning rate"]
Varied = Annotated[bool, "lists of 3 to 9 digits and letters, and made-up names"]
Seed = Annotated[int, "names the randomness"]
Lora = Annotated[
    int, AtLeast(0), "rank of adapters that are trained in place of all weights (0: none)"
]
StartLora = Annotated[
    int,
    AtLeast(0),
    "rank of adapters of --start, trained by AdamW in place of all weights (0: none)",
]


def require_full_step(texts: int, rows: int) -> None:
    """Check that there are enough texts for one step.

    Args:
        texts: Texts to learn from, at most.
        rows: Texts of a step.

    Raises:
        RequestError: A step takes more than there are.
    """
    if texts < rows:
        raise RequestError(
            f"texts is {texts}: a step takes rows ({rows}), so give at least as many"
        )
