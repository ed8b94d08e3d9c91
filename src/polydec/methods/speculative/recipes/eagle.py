"""EAGLE: a one-layer network drafts the target's states, and the target's own head their tokens."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware, PromptStates

CARD = Card(
    name="eagle",
    title="EAGLE",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="One layer, with a cache of its own, makes the next state of the target's state and the token behind it.",
    source="Li et al., EAGLE: speculative sampling requires rethinking feature uncertainty, 2024",
    reduces_to="plain at depth 0",
    parent="hydra",
    home="a target that is used long enough to train the layer for it",
    needs=(ArtefactNeed("eagle"),),
    needs_training=True,
    aliases=("eagle-1",),
    arxiv="2401.15077",
    published="3 times plain decoding (Vicuna-13B), 1.6 times Medusa",
)
PUBLISHED = PublishedPreset(
    {
        "nodes": PublishedValue(25, "a tree of 25 nodes; ours is smaller for a CPU"),
        "depth": PublishedValue(5, "its paths are five deep"),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    },
    unknown="which paths is a list there, and measured ranks of your drafter here",
)


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 16,
    depth: Annotated[int, InRange(1, 16), "levels"] = 4,
    prompt: PromptStates = True,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.eagle import EagleDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.eagle import EagleModel

    kit.read_prompt(CARD.name, prompt, "set prompt=false")
    eagle = kit.needed_artefact(EagleModel)
    # The tree's shape is fixed by how often each rank was right in training. Candidates are
    # certain, so `match` verifies them.
    drafter = EagleDrafter(eagle, RankedTree.of_rates(eagle.rates, nodes, depth), prompt)
    drafter = cost_aware_tree(drafter, eagle, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth, nodes))
