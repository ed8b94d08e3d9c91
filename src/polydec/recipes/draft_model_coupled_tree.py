"""Drafter-invariant speculative sampling with a token tree."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.coupled_static import CoupledStatic
from polydec.verifiers.coupled import Coupled

CARD = Card(
    name="draft-model-coupled-tree",
    title="Drafter-invariant speculative sampling with a token tree",
    summary="At each node the draft proposes the tokens that come first under the noise that the target will draw with.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Daliri, Musco, Suresh, Coupling without communication and drafter-invariant speculative decoding, 2024; "
           "Kool et al., Stochastic beams and where to find them, 2019",
    reduces_to="draft-model-coupled where every level has one child",
    parent="draft-model-coupled", home="sampling where a text must be reproducible under any draft",
    needs=("draft",),
    options={"levels": "children of each node, level by level, 1 to 16 of 1 to 16, such as 2,1,1",
             "nodes": "most tokens of a tree, 0 to 1024"},
)


def build(target: Target, *, draft: Target, levels: tuple[int, ...] = (2, 1, 1), nodes: int = 16) -> Speculative:
    return Speculative(target, FromModel(draft, CoupledStatic(levels)), Coupled(), Fixed(64, nodes))
