"""Falcon: one pass of a small network drafts the states of several tokens."""

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
    name="falcon",
    title="Falcon",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="An LSTM and a layer that sees whole blocks guess as many states a pass as a block has; trained by glancing.",
    source="Gao et al., Falcon: faster and parallel inference of LLMs through enhanced semi-autoregressive drafting, 2024",
    reduces_to="plain at depth 0",
    parent="eagle",
    home="a target that is used long enough to train the network for it, where a pass of it is dear",
    needs=(ArtefactNeed("falcon"),),
    needs_training=True,
    arxiv="2412.12639",
    published="3.10 times plain decoding, where EAGLE has 2.82 and Medusa 2.06 (MT-Bench, Vicuna-7B)",
)
PUBLISHED = PublishedPreset(
    {
        "depth": PublishedValue(8, "trees of 8 levels for one GPU"),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    },
    unknown="how many nodes they have could not be read: nodes stays ours",
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
    from polydec.methods.speculative.drafters.falcon import FalconDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.falcon import FalconModel

    kit.read_prompt(CARD.name, prompt, "set prompt=false")
    falcon = kit.needed_artefact(FalconModel)
    # The tree's shape is fixed by how often each rank was right in training.
    drafter = FalconDrafter(falcon, RankedTree.of_rates(falcon.rates, nodes, depth), prompt)
    drafter = cost_aware_tree(drafter, falcon, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth, nodes))
