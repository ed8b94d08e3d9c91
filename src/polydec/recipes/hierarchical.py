"""A small model that drafts with drafts of its own."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.hierarchical import Hierarchical
from polydec.drafters.recycling import Recycling
from polydec.policies.fixed import Fixed
from polydec.verifiers.exact import Exact
from polydec.verifiers.match import Match

CARD = Card(
    name="hierarchical",
    title="Hierarchical drafting",
    summary="The draft model writes its chain with Token Recycling's trees, and the target verifies that chain alone.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Zhang et al., Speculative decoding meets quantization: compatibility evaluation and hierarchical framework "
           "design (SpecMQuant), 2025; the inner trees by Luo et al., 2024",
    reduces_to="draft-model where inner_nodes is 0",
    parent="draft-model", home="targets whose passes over many tokens are dear, with a draft model that is not cheap",
    needs=("draft",),
    options={"depth": "length of the chain, 0 to 64", "k": "candidates remembered after each token, 1 to 64",
             "inner_nodes": "tokens of an inner tree, 0 to 256"},
)


def build(target: Target, *, draft: Target, depth: int = 4, k: int = 8, inner_nodes: int = 7) -> Speculative:
    drafter = Hierarchical(draft, Recycling(k, min(max(1, inner_nodes), 256)), Match(), depth, inner_nodes)
    return Speculative(target, drafter, Exact(), Fixed(depth))
