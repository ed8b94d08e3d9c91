"""Options that several methods of this family take alike."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import DeprecatedName, EntryCount, InRange

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
