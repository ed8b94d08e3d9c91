"""Speculative sampling that stops where the draft model is unsure."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.confidence import Confidence
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="draft-model-confidence",
    title="Speculative sampling, length by confidence",
    summary="The draft stops after a token that its model held for unlikely.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Leviathan et al., 2023; the confidence threshold of Hugging Face transformers (Assisted generation)",
    reduces_to="draft-model where threshold is 0",
    parent="draft-model", home="any text; most where passes over more tokens cost more, as on CPUs",
    needs=("draft",),
    options={"threshold": "least probability of a token that the draft goes on after, 0 to 1",
             "depth": "longest draft, 0 to 64"},
)


def build(target: Target, *, draft: Target, threshold: float = 0.4, depth: int = 8) -> Speculative:
    return Speculative(target, FromModel(draft, Chain()), Exact(), Confidence(threshold, depth))
