"""A token tree of independent draws."""
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
    name="specinfer",
    title="SpecInfer",
    summary="The draft draws several tokens independently at each node; rejection runs through them one after another.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Miao et al., SpecInfer: accelerating LLM serving with tree-based speculative inference and verification, 2023",
    reduces_to="draft-model where every level has one child",
    parent="draft-model", home="sampling at high temperature, where passes over several tokens cost little more than one",
    needs=("draft",),
    options={"levels": "children of each node, level by level, 1 to 16 of 1 to 16, such as 2,1,1",
             "nodes": "most tokens of a tree, 0 to 1024"},
)


def build(target: Target, *, draft: Target, levels: tuple[int, ...] = (2, 1, 1), nodes: int = 16) -> Speculative:
    return Speculative(target, FromModel(draft, Static(levels, replace=True)), Exact(), Fixed(64, nodes))
