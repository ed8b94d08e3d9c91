"""Hydra++: heads after a layer over all of the target's states, which know the drafted tokens."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware

NEED = ArtefactNeed(
    "heads", "draft heads behind a layer (hydra++)", lambda heads: heads.layer is not None
)
CARD = Card(
    name="hydra-plus-plus",
    title="Hydra++",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="As hydra, and a layer with a cache of its own reads all true states before the heads do.",
    source="Ankner et al., Hydra: sequentially-dependent draft heads for Medusa decoding, 2024",
    reduces_to="hydra where the layer passes its input on",
    parent="hydra",
    home="a target that is used long enough to train heads for it",
    needs=(NEED,),
    needs_training=True,
    aliases=("hydra++",),
    published="up to 1.31 times Medusa and 2.71 times plain decoding (Vicuna 7B to 33B, one A100)",
)
PUBLISHED = PublishedPreset(
    {
        "nodes": PublishedValue(63, "Medusa's tree of 63 nodes, for one GPU; 8 to 16 pay on a CPU"),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    }
)


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 16,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.heads import HeadsDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.heads import DraftHeads

    # The layer reads the states of all of the prompt: there is no option without them.
    kit.read_prompt(CARD.name)
    # Heads of several kinds share a class: NEED.which picks those after a layer.
    heads = kit.needed_artefact(DraftHeads, NEED.which)
    drafter = HeadsDrafter(heads, RankedTree.of_rates(heads.rates, nodes))
    drafter = cost_aware_tree(drafter, heads, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(heads.depth, nodes))
