"""Chimera: a layer over the target's states, for which drafted tokens enter as codes."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import CostAware, PromptStates

CARD = Card(
    name="chimera",
    title="Chimera",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="A layer over all true states and the codes of the last three tokens; drafted tokens enter as codes.",
    source="Zeng et al., Chimera: a lossless decoding method for accelerating LLM inference by fusing all tokens, 2024",
    reduces_to="plain at depth 0",
    parent="medusa",
    home="a target that is used long enough to train the layer for it",
    needs=(ArtefactNeed("chimera"),),
    needs_training=True,
    arxiv="2402.15758",
    published="2.7 times plain decoding on average (Vicuna 7B and 13B, LLaMA-2)",
)
PUBLISHED = PublishedPreset(refused="its trees have 20 to 60 nodes, and none is named as the one")


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 16,
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
    from polydec.models.learned.kinds.chimera import ChimeraModel

    kit.read_prompt(CARD.name, prompt, "set prompt=false")
    chimera = kit.needed_artefact(ChimeraModel)
    # The tree's shape is fixed by how often each rank was right in training.
    drafter = EagleDrafter(chimera, RankedTree.of_rates(chimera.rates, nodes), prompt)
    drafter = cost_aware_tree(drafter, chimera, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(chimera.depth, nodes)
    )
