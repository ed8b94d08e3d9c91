"""Prompt lookup, else Token Recycling."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.first_of import FirstOf
from polydec.drafters.lookup import Lookup
from polydec.drafters.recycling import Recycling
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="lookup-recycling",
    title="Prompt lookup, else Token Recycling",
    summary="Copies where a longer run of tokens comes back, and unfolds what the model found likely where none does.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="composition of Saxena, 2023, and Luo et al., 2024",
    reduces_to="token-recycling where no n-gram comes back",
    parent="token-recycling", home="any text without a draft model",
    options={
        "max_ngram": "longest run of tokens that is looked up, 1 to 16",
        "min_ngram": "shortest run of tokens that is looked up, 1 to max_ngram",
        "k": "candidates remembered after each token, 1 to 64",
        "nodes": "tokens of an unfolded tree, 1 to 256",
        "depth": "most tokens of a copy, 0 to 64",
        "growth": "tokens copied for each token that matched, 0 to 16 (0: always depth)",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, max_ngram: int = 5, min_ngram: int = 2, k: int = 8,
          nodes: int = 3, depth: int = 10, growth: int = 2, thrift: bool = True) -> Speculative:
    drafter = FirstOf((Lookup(max_ngram, min_ngram, growth=growth), Recycling(k, nodes)))
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(depth, max(depth, nodes)))
