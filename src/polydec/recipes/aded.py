"""ADED (Adaptix)."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.trigram import Trigram
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="aded",
    title="ADED (Adaptix)",
    summary="Searches a trigram table that follows the output, and drafts the most visited short sequences as a tree.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="ADED: Adaptive draft-verification for efficient large language model decoding, 2024",
    reduces_to="plain where no pair of tokens comes back",
    parent="plain", home="text of a narrow kind, with a table of its like",
    options={
        "nodes": "most tokens of a draft tree, 0 to 1024",
        "iterations": "searches a pass, 0 to 1024 (0: the likeliest sequences, best first; published: 150)",
        "length": "tokens of a search, 1 to 16",
        "rate": "what a trigram of the output gains, 0 to 1 (0: no adaptation)",
        "window": "how far back trigrams gain at each pass, 0 to 1024 (0: new ones once; published: 16)",
        "decay": "what other followers of the pair keep of their weight, above 0 to 1",
        "longest_first": "leave out the longest sequences where nodes are short, as published",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, nodes: int = 8, iterations: int = 32, length: int = 3,
          rate: float = 0.04, window: int = 0, decay: float = 1.0, longest_first: bool = False,
          thrift: bool = True) -> Speculative:
    drafter = Trigram(iterations, length, rate=rate, window=window, decay=decay, longest_first=longest_first)
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(64, nodes))
