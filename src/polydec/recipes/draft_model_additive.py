"""Speculative sampling whose drafts grow and shrink."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.additive import Additive
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="draft-model-additive",
    title="Speculative sampling, length by success",
    summary="The draft gets two tokens longer after it was accepted whole, one shorter after it was not.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Leviathan et al., 2023; the heuristic schedule of Hugging Face transformers (Gante, Assisted generation, 2023)",
    reduces_to="draft-model where rise and fall are 0",
    parent="draft-model", home="texts in which easy and hard stretches take turns",
    needs=("draft",),
    options={
        "first": "depth of the first draft, least to most", "least": "shortest draft, 1 to most",
        "most": "longest draft, 1 to 64", "rise": "tokens more after a draft that was accepted whole, 0 to 64",
        "fall": "tokens less after any other, 0 to 64",
    },
)


def build(target: Target, *, draft: Target, first: int = 5, least: int = 1, most: int = 16, rise: int = 2,
          fall: int = 1) -> Speculative:
    return Speculative(target, FromModel(draft, Chain()), Exact(), Additive(first, least, most, rise, fall))
