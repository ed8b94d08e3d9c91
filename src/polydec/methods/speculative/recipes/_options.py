"""Options that several methods of this family take alike."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, DeprecatedName, EntryCount, GreaterThan, InRange

CostAwareFormerlyThrift = Annotated[
    bool,
    DeprecatedName("thrift"),
    "feed only what is worth its rows by the costs measured here (as published: false)",
]
PromptStates = Annotated[
    bool, "the layer reads the whole prompt's states: a cached prefix is computed again"
]
CostAware = Annotated[
    bool, "feed only what is worth its rows by the costs measured here (as published: false)"
]
PathWidth = Annotated[
    int, InRange(1, 64), "paths expanded at each level and tokens tried below each"
]
LevelChildren = Annotated[
    tuple[int, ...],
    EntryCount(1, 16),
    InRange(1, 16),
    "children of each node, level by level, such as 2,1,1",
]
CandidateCount = Annotated[int, InRange(1, 64), "candidates remembered after each token"]
LiftedByNetwork = Annotated[
    bool, "rows are lifted by the trained network (false: drawn, made larger and quantised)"
]
InnerTemperature = Annotated[
    float, GreaterThan(0), "how much wider the last normal laws are made (inner temperature)"
]
PatchTries = Annotated[
    int, InRange(1, 10_000), "patches that are tried in place of a refused one at most"
]
DoubledFactor = Annotated[
    bool, "the factor of the earlier steps as in the public code: of the other sign, and squared"
]
ParallelRedraw = Annotated[
    bool, "all refused patches of a draft are drawn again at once, and the others stay"
]
GrowingGuidance = Annotated[bool, "guidance grows with the share of the picture that is drawn"]
SetCount = Annotated[int, AtLeast(1), "sets of a picture"]
DraftedSets = Annotated[int, InRange(1, 64), "sets that are drawn ahead at most"]
DraftedPatchCount = Annotated[int, InRange(1, 256), "patches that are drawn ahead at most"]
