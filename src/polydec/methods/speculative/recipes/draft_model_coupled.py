"""Drafter-invariant speculative sampling."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="draft-model-coupled",
    title="Drafter-invariant speculative sampling",
    summary="Draft and target draw with the same noise at each position: the text of a seed does not depend on the draft.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Daliri, Musco, Suresh, Coupling without communication and drafter-invariant speculative decoding, 2024",
    reduces_to="draft-model where the target is greedy",
    parent="plain",
    home="sampling where a text must be reproducible under any draft",
    needs=(DRAFT,),
    aliases=("drafter-invariant", "gumbel-coupling"),
    arxiv="2408.07978",
)
PUBLISHED = PublishedPreset(
    unknown="how many tokens are drafted is the user's there; a second coupling, by weighted MinHash, "
    "is not built"
)


def build(
    kit: Kit, *, depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 2
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.coupled_chain import CoupledChainTree
    from polydec.methods.speculative.verifiers.coupled import CoupledVerifier

    # Tree and verifier must go together: both draw with the noise of a token's position.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, CoupledChainTree()),
        CoupledVerifier(),
        FixedPolicy(depth),
    )
