"""Hydra: heads on the target's last hidden state, each knowing the tokens drafted before it."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware

NEED = ArtefactNeed(
    "heads", "draft heads that read tokens", lambda heads: heads.reads and heads.layer is None
)
CARD = Card(
    name="hydra",
    title="Hydra",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="As medusa, and each head reads the tokens drafted before it: two parents have different children.",
    source="Ankner et al., Hydra: sequentially-dependent draft heads for Medusa decoding, 2024",
    reduces_to="plain behind a prompt of one token, in the first round",
    parent="medusa",
    home="a target that is used long enough to train heads for it",
    needs=(NEED,),
    needs_training=True,
    aliases=("hydra heads",),
    arxiv="2402.05109",
    published="1.31 times Medusa and 2.71 times plain decoding at most, both by Hydra++ (Vicuna 7B to 33B, "
    "one A100)",
)
PUBLISHED = PublishedPreset(
    {
        "nodes": PublishedValue(63, "Medusa's tree of 63 nodes, for one GPU; 8 to 16 pay on a CPU"),
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

    # Heads of several kinds share a class: NEED.which picks those that read drafted tokens.
    heads = kit.needed_artefact(DraftHeads, NEED.which)
    drafter = HeadsDrafter(heads, RankedTree.of_rates(heads.rates, nodes))
    drafter = cost_aware_tree(drafter, heads, kit, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(heads.depth, nodes))
