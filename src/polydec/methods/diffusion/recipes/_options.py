"""Options that several methods of this family take alike."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, OneOf

BlockLength = Annotated[
    int, AtLeast(0), "positions that are filled before later ones may be (0: all are one block)"
]
WriteThreshold = Annotated[
    float, InRange(0, 2), "probability from which a token is written at once (above 1: one a pass)"
]
CacheLevel = Annotated[
    int, InRange(0, 2), "keys and values kept in a block: 0 none, 1 those before it, 2 all others"
]
BlockPasses = Annotated[int, AtLeast(0), "passes that a block is given (0: one for each gap)"]
EditTries = Annotated[int, InRange(1, 64), "edits that are drawn for each pass"]
OrderNoise = Annotated[float, InRange(0, 1000), "strength of the noise at first"]
CurveName = Annotated[
    str,
    OneOf("cosine", "linear", "square", "power", "cubic", "root", "log", "exponential"),
    "how many gaps are left while passes go by",
]
CoolestDraw = Annotated[
    float,
    InRange(0.01, 1),
    "temperature of the last pass; it falls from 1 with the root of the passes that are done (1: it stays)",
]
PromptStrength = Annotated[
    float, InRange(0, 16), "how much stronger the prompt is made, at twice the positions (0: not)"
]
AnswerLength = Annotated[int, AtLeast(0), "tokens that an answer should have (0: any number)"]
LengthPull = Annotated[
    float, AtLeast(0), "what an answer loses for each token that it is longer or shorter"
]
RewardHeat = Annotated[
    float,
    AtLeast(0),
    "in units of the reward: the higher, the less it counts (0: the best edit is taken)",
]
