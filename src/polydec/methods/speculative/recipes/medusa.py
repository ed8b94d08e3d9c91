"""Medusa: heads on the target's last hidden state, each for one token further ahead."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware

NEED = ArtefactNeed("heads", "draft heads that read the state alone", lambda heads: not heads.reads)
CARD = Card(
    name="medusa",
    title="Medusa",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="Heads on the target's last state each guess one token further ahead; their ranks form a tree by measured rates.",
    source="Cai et al., Medusa: simple LLM inference acceleration framework with multiple decoding heads, 2024",
    reduces_to="plain behind a prompt of one token, in the first round",
    parent="plain",
    home="a target that is used long enough to train heads for it",
    needs=(NEED,),
    needs_training=True,
    aliases=("medusa-1", "medusa heads"),
    arxiv="2401.10774",
    published="over 2.2 times plain decoding (Medusa-1), 2.3 to 3.6 times (Medusa-2), on one A100; by "
    "others on Spec-Bench 1.71 times (Vicuna-7B)",
)
PUBLISHED = PublishedPreset(
    {
        "nodes": PublishedValue(64, "trees of 64 nodes for one GPU; 8 to 16 pay on a CPU"),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    }
)


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 16,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.heads import HeadsDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.heads import DraftHeads

    # Heads of several kinds share a class: NEED.which picks those that read no tokens.
    heads = kit.needed_artefact(DraftHeads, NEED.which)
    drafter = HeadsDrafter(heads, RankedTree.of_rates(heads.rates, nodes))
    drafter = cost_aware_tree(drafter, heads, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(heads.depth, nodes))
