"""Lookup, suffix automaton and Token Recycling in one tree."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.lookup import Lookup
from polydec.drafters.merged_tree import MergedTree
from polydec.drafters.recycling import Recycling
from polydec.drafters.suffix import Suffix
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="grafted", title="Lookup, suffix automaton and Token Recycling in one tree",
    summary="Merges what three sources propose and keeps the likeliest nodes, by what each source got right so far.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="composition of Saxena, 2023, Hu et al., 2024, and Luo et al., 2024; likeliest nodes: Chen et al., Sequoia, 2024",
    reduces_to="its only source that proposes something",
    parent="lookup-recycling", home="any text without a draft model",
    options={
        "nodes": "most tokens of a draft, 0 to 1024",
        "depth": "most tokens in a row, 0 to 64",
        "floor": "leave out tokens whose path is right with less than this chance, 0 to 1",
        "trust": "how many trials a source's own estimate is worth, above 0",
        "k": "candidates remembered after each token, 1 to 64",
        "recycle_prefill": "remember what the prompt's rows say too (they are computed for it)",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, nodes: int = 10, depth: int = 10, floor: float = 0.1,
          trust: float = 32.0, k: int = 8, recycle_prefill: bool = False, thrift: bool = True) -> Speculative:
    recycling = Recycling(k, min(max(nodes, 1), 16), recycle_prefill)
    drafter = MergedTree((Lookup(8), Suffix(floor=floor), recycling), trust, floor)
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(depth, nodes))
