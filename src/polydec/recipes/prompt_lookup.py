"""Prompt lookup decoding."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.lookup import Lookup
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="prompt-lookup",
    title="Prompt lookup decoding",
    summary="Finds the last few tokens earlier in the text and proposes what followed them there.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Saxena, Prompt lookup decoding, 2023",
    reduces_to="plain where no n-gram of the text comes back",
    parent="plain", home="text that copies from its prompt: edits, summaries, code",
    options={
        "max_ngram": "longest run of tokens that is looked up, 1 to 16",
        "min_ngram": "shortest run of tokens that is looked up, 1 to max_ngram",
        "depth": "most tokens a draft may hold, 0 to 64",
        "growth": "tokens copied for each token that matched, 0 to 16 (0: always depth, as published)",
        "loop": "a copy that reaches the end of the text goes on from its own start",
        "first": "copy from the earliest occurrence instead of the latest",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, max_ngram: int = 8, min_ngram: int = 1,
          depth: int = 10, growth: int = 2, loop: bool = True, first: bool = False, thrift: bool = True) -> Speculative:
    drafter = Lookup(max_ngram, min_ngram, first, loop, growth)
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(depth))
