"""A token tree that grows where it is likely to be reached."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtMost, GreaterThan, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="dyspec",
    title="DySpec",
    summary="The tree grows level by level, wherever the draft makes it likely that verification gets there.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Xiong et al., DySpec: faster speculative decoding with dynamic token tree structure, 2024",
    reduces_to="draft-model where the draft is certain of every token",
    parent="rsd-c",
    home="texts in which sure and unsure stretches take turns",
    needs=(DRAFT,),
    arxiv="2410.11744",
    published="up to 9.1 times plain decoding's throughput (Llama-2-70B, offloaded, low temperature)",
)
PUBLISHED = PublishedPreset(
    {
        "floor": PublishedValue(
            0.0, "a token is taken to be accepted as often as the draft says; ours corrects that"
        ),
        "fade": PublishedValue(
            1.0, "siblings that were rejected before change nothing; ours corrects that"
        ),
    },
    unknown="its budgets and thresholds could not be read: nodes and threshold stay ours",
)


def build(
    kit: Kit,
    *,
    threshold: Annotated[
        float,
        GreaterThan(0),
        AtMost(1),
        "least chance of being reached that a place must have to be filled",
    ] = 0.1,
    floor: Annotated[
        float,
        InRange(0, 1),
        "chance of acceptance of a token that the draft holds for unlikely (published: 0)",
    ] = 0.4,
    fade: Annotated[
        float,
        InRange(0, 1),
        "factor of that chance for each sibling rejected before (published: 1)",
    ] = 0.4,
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a tree"] = 8,
    depth: Annotated[int, InRange(0, 64), "most levels"] = 8,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.greedy_growth import GreedyGrowthTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # `floor` and `fade` correct the published assumption that a token is accepted with its
    # probability under the draft.
    drafter = ModelDrafter(kit.drafting, GreedyGrowthTree(threshold, floor=floor, fade=fade))
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(depth, nodes))
