"""EAGLE-3: a layer that reads states of several depths and is trained on its own output."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware, PathWidth, PromptStates

CARD = Card(
    name="eagle-3",
    title="EAGLE-3",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="One layer reads states of several depths, trained on its own output, a head over some tokens; EAGLE-2's tree.",
    source="Li et al., EAGLE-3: scaling up inference acceleration of large language models via training-time test, 2025",
    reduces_to="plain at depth 0",
    parent="eagle-2",
    home="a target that is used long enough to train the layer for it",
    needs=(LAYERS, ArtefactNeed("eagle-3")),
    needs_training=True,
    arxiv="2503.01840",
    published="5.6 times plain decoding, 1.8 times EAGLE (Vicuna-13B)",
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
    },
    unknown="how many levels they have could not be read: depth stays ours",
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
    from polydec.models.learned.kinds.eagle3 import Eagle3Model

    kit.read_prompt(CARD.name, prompt, "set prompt=false")
    eagle = kit.needed_artefact(Eagle3Model)
    # The weights say which depths of the target they read; all else is as in EAGLE-2.
    drafter = EagleDrafter(eagle, BestFirstTree(width), prompt)
    drafter = cost_aware_tree(drafter, eagle, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth, nodes))
