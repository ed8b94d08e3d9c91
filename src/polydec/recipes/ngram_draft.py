"""Drafts of an n-gram table."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.backoff import Backoff
from polydec.drafters.cost_aware import CostAware
from polydec.models.ngrams import NGrams
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="ngram-draft", title="N-gram draft",
    summary="Drafts what followed the last few tokens in text that the target wrote before; a look costs no pass.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Leviathan et al., speculative decoding (bigram drafts), 2023; Ou et al., adaptive n-gram decoding, 2024",
    reduces_to="plain with a table that knows nothing of the text",
    parent="plain", home="answers of the kinds that the table was counted in",
    needs=("ngrams",),
    options={
        "floor": "go on while the whole draft is right with at least this chance, 0 to 1",
        "width": "most alternatives after a context, 1 to 16",
        "depth": "most tokens in a row, 0 to 64",
        "nodes": "most tokens of a draft, 0 to 1024",
        "thrift": "feed only what is worth its rows by the costs measured here",
    },
)


def build(target: Target, *, draft: Target | None = None, ngrams: NGrams, costs: Costs, floor: float = 0.1, width: int = 2,
          depth: int = 8, nodes: int = 16, thrift: bool = True) -> Speculative:
    drafter = Backoff(ngrams, floor, width)
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(depth, nodes))
