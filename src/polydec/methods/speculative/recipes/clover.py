"""Clover: every drafted token moves a state on, which begins after a layer over all true states."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtMost, GreaterThan, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware, PathWidth, PromptStates

CARD = Card(
    name="clover",
    title="Clover",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="Every drafted token moves a recurrent state, which begins behind a layer over all true states; few candidates.",
    source="Xiao et al., Clover: regressive lightweight speculative decoding with sequential knowledge, 2024",
    reduces_to="plain behind a prompt of one token, in the first round",
    parent="medusa",
    home="large batches, where few candidates can be fed",
    needs=(ArtefactNeed("clover"),),
    needs_training=True,
    arxiv="2405.00263",
    published="up to 1.91 times plain decoding's throughput (Baichuan-Small 7B) and 2.46 times (Baichuan- "
    "Large); up to 1.37 and 1.57 times Medusa's",
)
PUBLISHED = PublishedPreset(
    {
        "nucleus": PublishedValue(
            0.95,
            "tokens of a mass of 0.95, each a quarter as likely as the first or more; ours takes the likeliest",
        ),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    }
)


def build(
    kit: Kit,
    *,
    width: PathWidth = 4,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 4,
    nucleus: Annotated[
        float | None,
        GreaterThan(0),
        AtMost(1),
        "take tokens of this mass, a quarter as likely as the first or more (published: 0.95); none: by width",
    ] = None,
    prompt: PromptStates = True,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.heads import HeadsDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.trees.nucleus import NucleusTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.clover import CloverModel

    kit.read_prompt(CARD.name, prompt, "set prompt=false")
    clover = kit.needed_artefact(CloverModel)
    # As published, few candidates: the likeliest paths of each level, or those in the nucleus.
    drafter = HeadsDrafter(
        clover, BestFirstTree(width) if nucleus is None else NucleusTree(nucleus), prompt
    )
    drafter = cost_aware_tree(drafter, clover, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(clover.depth, nodes)
    )
