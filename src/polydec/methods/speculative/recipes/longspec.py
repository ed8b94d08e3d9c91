"""LongSpec: a layer with a window of its own drafts from the target's keys and values."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import EntryCount, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware, PathWidth

CARD = Card(
    name="longspec",
    title="LongSpec",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="A layer sees the last tokens through a window, and all before them through the target's own last-layer cache.",
    source="Yang et al., LongSpec: long-context lossless speculative decoding with efficient drafting and verification, 2025",
    reduces_to="plain at depth 0",
    parent="eagle-2",
    home="long texts: the drafter's own memory does not grow, and it is trained on short ones",
    needs=(ArtefactNeed("longspec"),),
    needs_training=True,
    arxiv="2502.17421",
    published="up to 3.26 times strong baselines on five sets of long texts; 2.25 times on AIME24 (QwQ)",
)
PUBLISHED = PublishedPreset(
    {
        "widths": PublishedValue(
            (4, 16, 16, 16, 16),
            "a tree of 68 nodes for one GPU; ours takes the likeliest nodes of all levels",
        ),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    }
)


def build(
    kit: Kit,
    *,
    width: PathWidth = 4,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 16,
    depth: Annotated[int, InRange(1, 16), "levels"] = 5,
    static: Annotated[
        bool,
        "a tree of one shape, by how often each rank was right, in place of the likeliest paths",
    ] = False,
    widths: Annotated[
        tuple[int, ...] | None,
        EntryCount(1, 16),
        InRange(1, 64),
        "a tree whose levels hold so many of the likeliest paths each, such as 4,16,16,16,16 (as published), in place of the "
        "`nodes` likeliest of all",
    ] = None,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.longspec import LongSpecDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.trees.widest import WidestTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.longspec import LongSpec

    longspec = kit.needed_artefact(LongSpec)
    # Three shapes of tree: fixed by rates from training, grown by probabilities, or of given widths
    # a level.
    of_rates = RankedTree.of_rates(longspec.rates, nodes, depth) if static else BestFirstTree(width)
    # Given widths say depth and nodes themselves.
    tree = of_rates if widths is None else WidestTree(widths)
    size = (depth, nodes) if widths is None else (len(widths), sum(widths))
    drafter = LongSpecDrafter(longspec, tree)
    drafter = cost_aware_tree(drafter, longspec, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(*size))
