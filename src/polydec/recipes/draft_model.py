"""Speculative sampling."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="draft-model",
    title="Speculative sampling",
    summary="A cheap model drafts a few tokens, the target scores them in one pass and keeps its own law.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Leviathan et al., Fast inference from transformers via speculative decoding, 2023; Chen et al., Accelerating large "
           "language model decoding with speculative sampling, 2023",
    reduces_to="plain where nothing is accepted",
    parent="plain", home="any text that the draft predicts well; gains as the target grows",
    needs=("draft",),
    options={"depth": "tokens drafted a pass, 0 to 64"},
)


def build(target: Target, *, draft: Target, depth: int = 2) -> Speculative:
    return Speculative(target, FromModel(draft, Chain()), Exact(), Fixed(depth))
