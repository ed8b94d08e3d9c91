"""Options that several searches of this family take alike."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote

StepDelimiter = Annotated[str, ValueNote("\\n: a line break"), "what a step ends with"]
StepTokens = Annotated[int, AtLeast(1), "tokens of a step at most"]
LengthPower = Annotated[
    float,
    InRange(-10, 10),
    ValueNote("below 0 favours short texts"),
    "power of the length that divides a score",
]
EarlyStop = Annotated[
    bool | None,
    ValueNote("none: when no text can win that is not there"),
    "true: stop at as many ended texts as beams; false: guess whether going on helps",
]
TextCount = Annotated[int, InRange(1, 256), "texts that are drawn side by side"]
AnswerMark = Annotated[
    str, ValueNote("none: the last line"), "what stands before an answer, such as 'answer is'"
]
