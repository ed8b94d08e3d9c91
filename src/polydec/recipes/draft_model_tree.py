"""Speculative sampling with a token tree."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.static import Static
from polydec.verifiers.exact import Exact

CARD = Card(
    name="draft-model-tree",
    title="Speculative sampling with a token tree",
    summary="The draft model draws several candidates at each node, and the target scores the whole tree in one pass.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Miao et al., SpecInfer, 2023; Jeon et al., Recursive speculative decoding, 2024",
    reduces_to="draft-model where every level has one child",
    parent="draft-model", home="sampling, with a target whose passes over several tokens cost little more than one",
    needs=("draft",),
    options={"levels": "children of each node, level by level, 1 to 16 of 1 to 16, such as 2,1,1",
             "nodes": "most tokens of a tree, 0 to 1024",
             "replace": "draw siblings independently instead of without replacement"},
)


def build(target: Target, *, draft: Target, levels: tuple[int, ...] = (2, 1, 1), nodes: int = 16,
          replace: bool = False) -> Speculative:
    return Speculative(target, FromModel(draft, Static(levels, replace)), Exact(), Fixed(64, nodes))
