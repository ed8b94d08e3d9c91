"""MSD: EAGLE-2 behind images, which enter the drafter as the vectors that the target reads."""

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
    name="msd",
    title="MSD",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="EAGLE-2 for prompts with images: words enter its layer with the target's states, images as their vectors alone.",
    source="Lin et al., Speculative decoding reimagined for multimodal large language models, 2025",
    reduces_to="eagle-2 without an image in the prompt",
    parent="eagle-2",
    home="a vision-language model that is used long enough to train the layer for it",
    needs=(ArtefactNeed("msd"),),
    needs_training=True,
    arxiv="2505.14260",
    published="up to 2.29 times plain decoding on multimodal benchmarks (LLaVA-1.5-7B), 2.46 times (13B)",
)
PUBLISHED = PublishedPreset(
    {
        "width": PublishedValue(8, "each level expands 8 paths; on a CPU their rows cost too much"),
        "nodes": PublishedValue(63, "trees of 63 nodes for one GPU"),
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
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.msd import MsdDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.msd import MsdModel

    # Of a cached prefix there are no states: it is fed again.
    kit.read_prompt(CARD.name)
    msd = kit.needed_artefact(MsdModel)
    drafter = MsdDrafter(msd, BestFirstTree(width))
    drafter = cost_aware_tree(drafter, msd, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth, nodes))
