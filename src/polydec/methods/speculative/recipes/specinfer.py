"""A token tree of independent draws."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import LevelChildren

CARD = Card(
    name="specinfer",
    title="SpecInfer",
    summary="The draft draws several tokens independently at each node; rejection runs through them one after another.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Miao et al., SpecInfer: accelerating LLM serving with tree-based speculative inference and verification, 2023",
    reduces_to="draft-model where every level has one child",
    parent="draft-model",
    home="sampling at high temperature, where passes over several tokens cost little more than one",
    needs=(DRAFT,),
    arxiv="2305.09781",
)
PUBLISHED = PublishedPreset(
    {
        "levels": PublishedValue(
            (1, 1, 3, 1, 1, 1, 1, 1),
            "one child, one, three and then one each, eight deep; ours is smaller for a CPU",
        ),
        "nodes": PublishedValue(20, "so many tokens has that tree"),
    },
    unknown="its tree of several draft models is `merged-drafts`",
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

    # Siblings are independent draws from one law, which the rejection test tries one after another.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, StaticTree(levels, replace=True)),
        ExactVerifier(),
        FixedPolicy(64, nodes),
    )
