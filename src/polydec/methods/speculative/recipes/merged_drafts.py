"""Lookup, suffix automaton and Token Recycling in one tree."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import GreaterThan, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.loop.with_source import with_source_text
from polydec.methods.speculative.recipes._options import (
    CandidateCount,
    CostAwareFormerlyThrift,
)

CARD = Card(
    name="merged-drafts",
    title="Lookup, suffix automaton and Token Recycling in one tree",
    summary="Merges what three sources propose and keeps the likeliest nodes, by what each source got right so far.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="composition of Saxena, 2023, Hu et al., 2024, and Luo et al., 2024; likeliest nodes: Chen et al., Sequoia, 2024",
    reduces_to="its only source that proposes something",
    parent="lookup-recycling",
    home="any text without a draft model",
    aliases=("grafted",),
)
PUBLISHED = PublishedPreset(refused="it is put together here, and no paper has it")


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a draft"] = 10,
    depth: Annotated[int, InRange(0, 64), "most tokens in a row"] = 10,
    floor: Annotated[
        float, InRange(0, 1), "leave out tokens whose path is right with less than this chance"
    ] = 0.1,
    trust: Annotated[
        float, GreaterThan(0), "how many trials a source's own estimate is worth"
    ] = 32.0,
    k: CandidateCount = 8,
    recycle_prefill: Annotated[
        bool, "remember what the prompt's rows say too (they are computed for it)"
    ] = False,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.lookup import LookupDrafter
    from polydec.methods.speculative.drafters.merged_tree import MergedTreeDrafter
    from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
    from polydec.methods.speculative.drafters.suffix import SuffixDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # The recycled tree alone may not fill the merged one.
    recycling = RecyclingDrafter(k, min(max(nodes, 1), 16), recycle_prefill)
    copies = (
        with_source_text(LookupDrafter(8), kit.source),
        with_source_text(SuffixDrafter(floor=floor), kit.source),
    )
    # Each source's chances are calibrated in the text, so that they can be compared with one
    # another.
    drafter = MergedTreeDrafter((*copies, recycling), trust, floor)
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(depth, nodes),
    )
