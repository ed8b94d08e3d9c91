"""A draft model's likeliest paths."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import PathWidth

CARD = Card(
    name="eagle-2-tree",
    title="EAGLE-2's tree over a draft model",
    summary="The draft model's likeliest paths are proposed with certainty, the likeliest nodes of all that it looked at.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Li et al., EAGLE-2: faster inference of language models with dynamic draft trees, 2024 (the tree)",
    reduces_to="draft-model under greedy laws at width 1",
    parent="draft-model",
    home="greedy decoding, and sampling at low temperature",
    needs=(DRAFT,),
    aliases=("draft-model-best-first", "eagle-2's tree", "dynamic draft tree"),
)
PUBLISHED = PublishedPreset(
    refused="EAGLE-2 has its tree over an EAGLE layer: over a draft model it is ours"
)


def build(
    kit: Kit,
    *,
    width: PathWidth = 3,
    nodes: Annotated[int, InRange(0, 1024), "tokens of a tree"] = 6,
    depth: Annotated[int, InRange(0, 64), "levels"] = 4,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # The dynamic tree needs no trained layer: any draft model's probabilities will do.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, BestFirstTree(width)),
        MatchVerifier(),
        FixedPolicy(depth, nodes),
    )
