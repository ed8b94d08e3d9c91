"""A token tree of draws without replacement."""
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
    name="rsd-c",
    title="Recursive speculative decoding, constant branching",
    summary="Siblings are drawn without replacement, so none is tried twice, and rejection knows what is left of the draft.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Jeon et al., Recursive speculative decoding: accelerating LLM inference via sampling without replacement, 2024",
    reduces_to="draft-model where every level has one child",
    parent="specinfer", home="sampling, where passes over several tokens cost little more than one",
    needs=("draft",),
    options={"levels": "children of each node, level by level, 1 to 16 of 1 to 16, such as 2,1,1",
             "nodes": "most tokens of a tree, 0 to 1024"},
)


def build(target: Target, *, draft: Target, levels: tuple[int, ...] = (2, 1, 1), nodes: int = 16) -> Speculative:
    return Speculative(target, FromModel(draft, Static(levels)), Exact(), Fixed(64, nodes))
