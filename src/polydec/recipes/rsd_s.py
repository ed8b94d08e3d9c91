"""Whole paths drawn without replacement."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.stochastic_beam import StochasticBeam
from polydec.verifiers.exact import Exact

CARD = Card(
    name="rsd-s",
    title="Recursive speculative decoding, stochastic beam",
    summary="A stochastic beam draws whole paths without replacement: branches that became unlikely end early.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Jeon et al., Recursive speculative decoding: accelerating LLM inference via sampling without replacement, 2024",
    reduces_to="draft-model at width 1",
    parent="rsd-c", home="sampling, where passes over several tokens cost little more than one",
    needs=("draft",),
    options={"width": "paths drawn, 1 to 64", "depth": "levels, 0 to 64"},
)


def build(target: Target, *, draft: Target, width: int = 2, depth: int = 3) -> Speculative:
    return Speculative(target, FromModel(draft, StochasticBeam(width)), Exact(), Fixed(depth, min(width * depth, 1024)))
