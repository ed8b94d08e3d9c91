"""A token tree of draws without replacement."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import LevelChildren

CARD = Card(
    name="rsd-c",
    title="Recursive speculative decoding, constant branching",
    summary="Siblings are drawn without replacement, so none is tried twice, and rejection knows what is left of the draft.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Jeon et al., Recursive speculative decoding: accelerating LLM inference via sampling without replacement, 2024",
    reduces_to="draft-model where every level has one child",
    parent="specinfer",
    home="sampling, where passes over several tokens cost little more than one",
    needs=(DRAFT,),
    aliases=("draft-model-tree", "recursive speculative decoding", "constant branching"),
    arxiv="2402.14160",
)
PUBLISHED = PublishedPreset(
    refused="its trees are a sweep over budgets of 6 to 30 tokens, and none is named as the one"
)


def build(
    kit: Kit,
    *,
    levels: LevelChildren = (2, 1, 1),
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a tree"] = 16,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.static import StaticTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # The tree's levels bound its depth; `nodes` bounds the rows of a pass.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, StaticTree(levels)),
        ExactVerifier(),
        FixedPolicy(64, nodes),
    )
