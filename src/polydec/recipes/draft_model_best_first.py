"""A draft model's likeliest paths."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.best_first import BestFirst
from polydec.verifiers.match import Match

CARD = Card(
    name="draft-model-best-first",
    title="EAGLE-2's tree over a draft model",
    summary="The draft model's likeliest paths are proposed with certainty, the likeliest nodes of all that it looked at.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Li et al., EAGLE-2: faster inference of language models with dynamic draft trees, 2024 (the tree)",
    reduces_to="draft-model under greedy laws at width 1",
    parent="draft-model", home="greedy decoding, and sampling at low temperature",
    needs=("draft",),
    options={
        "width": "paths expanded at each level and tokens tried below each, 1 to 64",
        "nodes": "tokens of a tree, 0 to 1024", "depth": "levels, 0 to 64",
    },
)


def build(target: Target, *, draft: Target, width: int = 3, nodes: int = 6, depth: int = 4) -> Speculative:
    return Speculative(target, FromModel(draft, BestFirst(width)), Match(), Fixed(depth, nodes))
