"""A small model that drafts with drafts of its own."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CandidateCount

CARD = Card(
    name="specmquant",
    title="Hierarchical drafting",
    summary="The draft model writes its chain with trees of its own (Token Recycling's, or EAGLE-2's as published), and the "
    "target verifies that chain alone.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Zhang et al., Speculative decoding meets quantization: compatibility evaluation and hierarchical framework "
    "design (SpecMQuant), 2025; the inner trees by Luo et al., 2024, or Li et al., 2024",
    reduces_to="draft-model where inner_nodes is 0",
    parent="draft-model",
    home="targets whose passes over many tokens are dear, with a draft model that is not cheap",
    needs=(DRAFT,),
    aliases=("hierarchical", "hierarchical drafting"),
    arxiv="2505.22179",
    published="2.78 times plain decoding, 1.31 times EAGLE-2 (Llama-3-70B in 4 bits, one A100)",
)
PUBLISHED = PublishedPreset(
    {
        "least": PublishedValue(6, "a chain of 6 tokens is verified"),
        "depth": PublishedValue(9, "chains of at most 9 tokens"),
        "inner_nodes": PublishedValue(30, "inner trees of 30 nodes for one GPU"),
        "inner_depth": PublishedValue(3, "inner trees of 3 levels"),
        "eagle": PublishedValue(
            True, "an EAGLE layer drafts for the draft model; ours needs no training"
        ),
        "width": PublishedValue(10, "each level expands 10 paths"),
    }
)


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "longest chain"] = 4,
    least: Annotated[
        int | None,
        InRange(1, 64),
        "a chain of so many tokens is verified (published: 6, with depth 9); none: depth",
    ] = None,
    k: CandidateCount = 8,
    inner_nodes: Annotated[int, InRange(0, 256), "tokens of an inner tree (published: 30)"] = 7,
    inner_depth: Annotated[int, InRange(0, 64), "levels of an inner tree (published: 3)"] = 4,
    eagle: Annotated[
        bool,
        "inner trees by an EAGLE layer that was trained for the draft model (as published); false: Token Recycling's",
    ] = False,
    width: Annotated[
        int, InRange(1, 64), "paths of EAGLE's tree that each level expands (published: 10)"
    ] = 4,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.eagle import EagleDrafter
    from polydec.methods.speculative.drafters.hierarchical import HierarchicalDrafter
    from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.eagle import EagleModel

    # An inner drafter of the small model: its own EAGLE layer, or a recycling table.
    inner = (
        EagleDrafter(kit.of_draft.needed_artefact(EagleModel), BestFirstTree(width))
        if eagle
        else RecyclingDrafter(k, min(max(1, inner_nodes), 256))
    )
    # Inner drafts are certain, so the small model's own draws verify them; its chain is then
    # verified by rejection.
    drafter = HierarchicalDrafter(
        kit.drafting, inner, MatchVerifier(), inner_depth, inner_nodes, least
    )
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(depth))
