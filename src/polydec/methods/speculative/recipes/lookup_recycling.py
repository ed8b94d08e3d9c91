"""Prompt lookup, else Token Recycling."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.loop.with_source import with_source_text
from polydec.methods.speculative.recipes._options import (
    CandidateCount,
    CostAwareFormerlyThrift,
)

CARD = Card(
    name="lookup-recycling",
    title="Prompt lookup, else Token Recycling",
    summary="Copies where a longer run of tokens comes back, and unfolds what the model found likely where none does.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="composition of Saxena, 2023, and Luo et al., 2024",
    reduces_to="token-recycling where no n-gram comes back",
    parent="token-recycling",
    home="any text without a draft model",
)
PUBLISHED = PublishedPreset(refused="it is put together here, and no paper has it")


def build(
    kit: Kit,
    *,
    max_ngram: Annotated[int, InRange(1, 16), "longest run of tokens that is looked up"] = 5,
    min_ngram: Annotated[
        int, AtLeast(1), "shortest run of tokens that is looked up, at most max_ngram"
    ] = 2,
    k: CandidateCount = 8,
    nodes: Annotated[int, InRange(1, 256), "tokens of an unfolded tree"] = 3,
    depth: Annotated[int, InRange(0, 64), "most tokens of a copy"] = 10,
    growth: Annotated[
        int, InRange(0, 16), "tokens copied for each token that matched (0: always depth)"
    ] = 2,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.first_of import FirstOfDrafter
    from polydec.methods.speculative.drafters.lookup import LookupDrafter
    from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    copies = with_source_text(LookupDrafter(max_ngram, min_ngram, growth=growth), kit.source)
    # A copy speaks first; the recycled tree is for rounds without one.
    drafter = FirstOfDrafter((copies, RecyclingDrafter(k, nodes)))
    drafter = CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(depth, max(depth, nodes))
    )
