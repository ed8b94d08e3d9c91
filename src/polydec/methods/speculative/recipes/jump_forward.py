"""Jump-forward decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.loop.with_source import with_source_text

CARD = Card(
    name="jump-forward",
    title="Jump-forward decoding",
    summary="Proposes the tokens that a constraint leaves no choice about; elsewhere, if asked, what stands in the prompt.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Zheng et al., SGLang: efficient execution of structured language model programs, 2024 (here verified)",
    reduces_to="plain without a constraint",
    parent="plain",
    home="JSON with long keys, templates: text that a constraint dictates in part",
    aliases=("forced tokens", "fast-forward", "jump forward decoding"),
)
PUBLISHED = PublishedPreset(
    {
        "depth": PublishedValue(
            64, "all that is forced is appended, without a pass; ours is checked, and bounded"
        ),
    }
)


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "most tokens a draft may hold"] = 16,
    lookup: Annotated[
        int,
        InRange(0, 64),
        ValueNote("0: none"),
        "tokens copied from earlier text where none is forced",
    ] = 0,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.capped import CappedDrafter
    from polydec.methods.speculative.drafters.first_of import FirstOfDrafter
    from polydec.methods.speculative.drafters.forced import JumpForwardDrafter
    from polydec.methods.speculative.drafters.lookup import LookupDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # What the constraint forces comes first; where it leaves a choice, copies are tried.
    drafter = FirstOfDrafter(
        (
            JumpForwardDrafter(kit.target.vocab, kit.language),
            CappedDrafter(with_source_text(LookupDrafter(), kit.source), lookup),
        )
    )
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth))
