"""Suffix automaton decoding."""
from __future__ import annotations

from typing import Any

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.automaton import Store
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.suffix import Suffix
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="suffix-automaton", title="Suffix automaton decoding",
    summary="Finds the longest run of tokens that stood in the text before and copies on for as long as that looks likely.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Hu et al., SAM decoding: speculative decoding via suffix automaton, 2024; Oliaro et al., SuffixDecoding, 2024",
    reduces_to="plain where no token of the text comes back",
    parent="prompt-lookup", home="text that copies in long runs from its prompt or from itself",
    options={
        "min_match": "shortest run of tokens that is copied from, 1 to 64",
        "floor": "go on while the whole copy is right with at least this chance, 0 to 1",
        "width": "most alternatives after a run, 1 to 16",
        "depth": "most tokens in a row, 0 to 64",
        "nodes": "most tokens of a draft, 0 to 1024",
        "hot": "copy from the engine's earlier requests as well: drafts then show what these hold",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, kept: dict[str, Any], min_match: int = 1,
          floor: float = 0.3, width: int = 2, depth: int = 16, nodes: int = 16, hot: bool = False,
          thrift: bool = True) -> Speculative:
    drafter = Suffix(min_match, floor, width, store=kept.setdefault("store", Store()) if hot else None, add=hot)
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(depth, nodes))
