"""Speculative sampling with drafts as long as pay."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.goodput import Goodput
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="draft-model-goodput",
    title="Speculative sampling with drafts as long as pay",
    summary="Drafts while the next token is expected to save more time than it costs by the costs measured here, or nothing.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Liu et al., TurboSpec: closed-loop speculation control (goodput), 2024",
    reduces_to="plain, but for exploring rounds, where the draft is never right",
    parent="draft-model", home="text of changing difficulty, machines on which no one length is best",
    needs=("draft",),
    options={"depth": "most tokens of a draft, 0 to 64",
             "explore": "rounds without a draft after which one is tried, at least 1"},
)


def build(target: Target, *, draft: Target, costs: Costs, depth: int = 10, explore: int = 16) -> Speculative:
    return Speculative(target, FromModel(draft, Chain()), Exact(), Goodput(costs, depth, explore=explore))
