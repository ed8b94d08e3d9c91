"""A small model that drafts with drafts of its own."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.card import Card
from polydec.methods.kit import DRAFT, Kit

CARD = Card(
    name="specmquant",
    title="Hierarchical drafting",
    summary="The draft model writes its chain with Token Recycling's trees, and the target verifies that chain alone.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Zhang et al., Speculative decoding meets quantization: compatibility evaluation and hierarchical framework "
    "design (SpecMQuant), 2025; the inner trees by Luo et al., 2024",
    reduces_to="draft-model where inner_nodes is 0",
    parent="draft-model",
    home="targets whose passes over many tokens are dear, with a draft model that is not cheap",
    needs=(DRAFT,),
    aliases=("hierarchical", "hierarchical drafting"),
    arxiv="2505.22179",
    published="2.78 times plain decoding, 1.31 times EAGLE-2 (Llama-3-70B in 4 bits, one A100)",
)


def build(
    kit: Kit,
    *,
    depth: Annotated[int, Within(0, 64), "length of the chain"] = 4,
    k: Annotated[int, Within(1, 64), "candidates remembered after each token"] = 8,
    inner_nodes: Annotated[int, Within(0, 256), "tokens of an inner tree"] = 7,
) -> Decoder:
    from polydec.drafters.hierarchical import Hierarchical
    from polydec.drafters.recycling import Recycling
    from polydec.families.ar.speculative import Speculative
    from polydec.policies.fixed import Fixed
    from polydec.verifiers.exact import Exact
    from polydec.verifiers.match import Match

    drafter = Hierarchical(
        kit.drafting, Recycling(k, min(max(1, inner_nodes), 256)), Match(), depth, inner_nodes
    )
    return Speculative(kit.target, drafter, Exact(), Fixed(depth))
