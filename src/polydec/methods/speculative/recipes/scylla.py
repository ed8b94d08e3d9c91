"""Scylla: a drafter on the target's states, whose tree is as wide as pays at the batch."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import PathWidth

CARD = Card(
    name="scylla",
    title="Scylla: a tree as wide as pays at the batch",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="EAGLE-2's tree, wide for one sequence and narrower the more of them share a pass; of a drafter of several layers.",
    source="Yan et al., Scaling laws for speculative decoding, 2025",
    reduces_to="eagle-2 where one width is the best at every batch",
    parent="eagle-2",
    home="a server whose load swings, on a machine where rows cost little for few sequences",
    needs=(ArtefactNeed("eagle"),),
    needs_training=True,
    arxiv="2505.07858",
    published="1.5 to 2.2 more accepted tokens a pass than EAGLE-2, 0.3 more than EAGLE-3 (Llama-2, Llama-3 and Qwen2.5, "
    "greedy); twice EAGLE-2's throughput",
)
PUBLISHED = PublishedPreset(
    refused="its widths by batch come from fits that are made for each device"
)


def build(
    kit: Kit,
    *,
    widths: Annotated[
        str,
        "tokens of a tree by sequences at once, such as 1:16,4:8,16:0 (none: by the costs measured here)",
    ] = "",
    nodes: Annotated[int, InRange(1, 64), "tokens of the widest tree, where costs decide"] = 16,
    width: PathWidth = 4,
    depth: Annotated[int, InRange(1, 16), "levels"] = 5,
    patience: Annotated[int, AtLeast(1), "rounds in a row that must ask for another width"] = 3,
    prompt: Annotated[
        bool, "the layers read the whole prompt's states: a cached prefix is computed again"
    ] = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.economics.widths import widths_for
    from polydec.methods.speculative.drafters.eagle import EagleDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.batch_width import BatchWidthPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.eagle import EagleModel

    eagle = kit.needed_artefact(EagleModel)
    kit.read_prompt(CARD.name, prompt, "set prompt=false")
    # The widths come from measured costs and the rates of training, before anything is decoded.
    table = widths_for(widths, eagle.rates, eagle.share, kit.costs, nodes, depth)
    drafter = EagleDrafter(eagle, BestFirstTree(width), prompt)
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), BatchWidthPolicy(table, depth, patience)
    )
