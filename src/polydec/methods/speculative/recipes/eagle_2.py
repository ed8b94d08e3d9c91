"""EAGLE-2: EAGLE's layer, and a tree that its own probabilities shape."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware, PathWidth, PromptStates

CARD = Card(
    name="eagle-2",
    title="EAGLE-2",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="EAGLE's layer expands its likeliest paths level by level, and of all nodes the likeliest are fed.",
    source="Li et al., EAGLE-2: faster inference of language models with dynamic draft trees, 2024",
    reduces_to="eagle with a chain at width 1",
    parent="eagle",
    home="a target that is used long enough to train the layer for it",
    needs=(ArtefactNeed("eagle"),),
    needs_training=True,
    arxiv="2406.16858",
    published="up to about 4 times plain decoding; on Spec-Bench 2.36 times, 4.34 tokens a pass (Vicuna-7B, "
    "one A100)",
)
PUBLISHED = PublishedPreset(
    {
        "width": PublishedValue(
            10, "each level expands 10 paths; on a CPU their rows cost too much"
        ),
        "nodes": PublishedValue(60, "trees of 60 nodes for one GPU"),
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
    prompt: PromptStates = True,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.eagle import EagleDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.eagle import EagleModel

    kit.read_prompt(CARD.name, prompt, "set prompt=false")
    eagle = kit.needed_artefact(EagleModel)
    # The same layer as EAGLE; the tree follows its probabilities at each text instead of rates from
    # training.
    drafter = EagleDrafter(eagle, BestFirstTree(width), prompt)
    drafter = cost_aware_tree(drafter, eagle, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth, nodes))
