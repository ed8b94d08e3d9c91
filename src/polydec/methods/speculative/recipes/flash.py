"""FLASH: drafts behind images from few rows of each, several tokens a pass of the drafter."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware, PathWidth

CARD = Card(
    name="flash",
    title="FLASH",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="The drafter sees a few learned mixtures of an image's vectors, and a pass of it guesses several tokens.",
    source="FLASH: latent-aware semi-autoregressive speculative decoding for multimodal tasks, 2025",
    reduces_to="msd where nothing is compressed and a block is one state",
    parent="msd",
    home="a vision-language model that is used long enough to train the layer for it, with images of many vectors",
    needs=(ArtefactNeed("flash"),),
    needs_training=True,
    arxiv="2505.12728",
    published="up to 2.68 times plain decoding (video captions), 2.55 times (visual instructions)",
)
PUBLISHED = PublishedPreset(
    {
        "ranked": PublishedValue(
            True, "a static tree by ranks; ours grows by the draft's own laws"
        ),
        "nodes": PublishedValue(25, "EAGLE's tree of 25 nodes; ours is smaller for a CPU"),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    },
    unknown="which paths is a list there, and measured ranks of your drafter here",
)


def build(
    kit: Kit,
    *,
    width: PathWidth = 4,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 16,
    depth: Annotated[int, InRange(1, 16), "levels"] = 5,
    ranked: Annotated[
        bool,
        "a static tree by how often each rank was right in training (false: it grows by width)",
    ] = False,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.flash import FlashDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.flash import FlashModel

    # Of a cached prefix there are no states: it is fed again.
    kit.read_prompt(CARD.name)
    flash = kit.needed_artefact(FlashModel)
    tree = RankedTree.of_rates(flash.rates, nodes, depth) if ranked else BestFirstTree(width)
    drafter = FlashDrafter(flash, tree)
    drafter = cost_aware_tree(drafter, flash, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth, nodes))
