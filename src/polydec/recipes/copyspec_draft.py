"""CopySpec over a draft model."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.capped import Capped
from polydec.drafters.copying import Copying
from polydec.drafters.first_of import FirstOf
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="copyspec-draft",
    title="CopySpec over a draft model",
    summary="Copies where the last few tokens stood in the conversation before; elsewhere a cheap model drafts.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Dumitru et al., CopySpec: accelerating LLMs with speculative copy-and-paste without compromising quality, 2025",
    reduces_to="draft-model with block 0",
    parent="draft-model", home="later turns of a chat that repeat what was said",
    needs=("draft",),
    options={
        "gamma": "tokens that must match, 1 to 16",
        "block": "tokens copied, 0 to 64",
        "depth": "tokens that the model drafts a pass, 0 to 64",
        "first": "copy from the earliest occurrence instead of the latest",
    },
)


def build(target: Target, *, draft: Target, gamma: int = 3, block: int = 10, depth: int = 3,
          first: bool = True) -> Speculative:
    drafter = FirstOf((Copying(gamma, block, first), Capped(FromModel(draft, Chain()), depth)))
    return Speculative(target, drafter, Exact(), Fixed(max(block, depth)))
