"""Drafter-invariant speculative sampling."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.coupled_chain import CoupledChain
from polydec.verifiers.coupled import Coupled

CARD = Card(
    name="draft-model-coupled",
    title="Drafter-invariant speculative sampling",
    summary="Draft and target draw with the same noise at each position: the text of a seed does not depend on the draft.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Daliri, Musco, Suresh, Coupling without communication and drafter-invariant speculative decoding, 2024",
    reduces_to="draft-model where the target is greedy",
    parent="plain", home="sampling where a text must be reproducible under any draft",
    needs=("draft",),
    options={"depth": "tokens drafted a pass, 0 to 64"},
)


def build(target: Target, *, draft: Target, depth: int = 2) -> Speculative:
    return Speculative(target, FromModel(draft, CoupledChain()), Coupled(), Fixed(depth))
