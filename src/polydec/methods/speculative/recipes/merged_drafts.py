"""Lookup, suffix automaton and Token Recycling in one tree."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import Above, Formerly, Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.loop.with_source import with_source_text

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


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, Within(0, 1024), "most tokens of a draft"] = 10,
    depth: Annotated[int, Within(0, 64), "most tokens in a row"] = 10,
    floor: Annotated[
        float, Within(0, 1), "leave out tokens whose path is right with less than this chance"
    ] = 0.1,
    trust: Annotated[float, Above(0), "how many trials a source's own estimate is worth"] = 32.0,
    k: Annotated[int, Within(1, 64), "candidates remembered after each token"] = 8,
    recycle_prefill: Annotated[
        bool, "remember what the prompt's rows say too (they are computed for it)"
    ] = False,
    cost_aware: Annotated[
        bool,
        Formerly("thrift"),
        "feed only what is worth its rows by the costs measured here (as published: false)",
    ] = True,
) -> Decoder:
    from polydec.methods.speculative.drafters.cost_aware import CostAware
    from polydec.methods.speculative.drafters.lookup import Lookup
    from polydec.methods.speculative.drafters.merged_tree import MergedTree
    from polydec.methods.speculative.drafters.recycling import Recycling
    from polydec.methods.speculative.drafters.suffix import Suffix
    from polydec.methods.speculative.loop.speculative import Speculative
    from polydec.methods.speculative.policies.fixed import Fixed
    from polydec.methods.speculative.verifiers.match import Match

    recycling = Recycling(k, min(max(nodes, 1), 16), recycle_prefill)
    copies = (
        with_source_text(Lookup(8), kit.source),
        with_source_text(Suffix(floor=floor), kit.source),
    )
    drafter = MergedTree((*copies, recycling), trust, floor)
    return Speculative(
        kit.target,
        CostAware(drafter, None, kit.costs) if cost_aware else drafter,
        Match(),
        Fixed(depth, nodes),
    )
