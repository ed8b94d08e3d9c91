"""Options that several presses take alike."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, OneOf

PackedBits = Annotated[int, OneOf(2, 4, 8), "of a number"]
ScaleGroup = Annotated[
    int, InRange(0, 4096), "numbers that share a scale; 0: a whole channel's, or token's (KCVT)"
]
BlockEntries = Annotated[int, InRange(16, 4096), "entries that are packed at once"]
ErrorRank = Annotated[int, InRange(0, 256), "of what is added for the rounding error"]
ValueRank = Annotated[int | None, InRange(0, 256), "of what is added to values; none: as rank"]
PromptTokens = Annotated[
    int, InRange(0, 10_000_000), "first tokens that count as the prompt; 0: all of the text"
]
DecodedRank = Annotated[
    int | None, InRange(0, 256), "rank behind the prompt (published: 2); none: as within it"
]
DecodedValueRank = Annotated[
    int | None, InRange(0, 256), "of values behind the prompt; none: as decoded_rank"
]
KeptShare = Annotated[float, InRange(0.001, 1.0), "share of an image's vectors that stay"]
RandomSeed = Annotated[int, InRange(0, 2**31), "another number draws others"]
