"""A token tree that grows where it is likely to be reached."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.greedy_growth import GreedyGrowth
from polydec.verifiers.exact import Exact

CARD = Card(
    name="dyspec",
    title="DySpec",
    summary="The tree grows level by level, wherever the draft makes it likely that verification gets there.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Xiong et al., DySpec: faster speculative decoding with dynamic token tree structure, 2024",
    reduces_to="draft-model where the draft is certain of every token",
    parent="rsd-c", home="texts in which sure and unsure stretches take turns",
    needs=("draft",),
    options={
        "threshold": "least chance of being reached that a place must have to be filled, above 0 to 1",
        "floor": "chance of acceptance of a token that the draft holds for unlikely, 0 to 1 (published: 0)",
        "fade": "factor of that chance for each sibling rejected before, 0 to 1 (published: 1)",
        "nodes": "most tokens of a tree, 0 to 1024", "depth": "most levels, 0 to 64",
    },
)


def build(target: Target, *, draft: Target, threshold: float = 0.1, floor: float = 0.4, fade: float = 0.4,
          nodes: int = 8, depth: int = 8) -> Speculative:
    return Speculative(target, FromModel(draft, GreedyGrowth(threshold, floor=floor, fade=fade)), Exact(), Fixed(depth, nodes))
