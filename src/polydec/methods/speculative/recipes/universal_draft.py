"""Universal assisted decoding: a draft model of any tokenizer."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ANY_DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="universal-draft",
    title="Universal assisted decoding",
    summary="A draft model of any tokenizer reads the text in its own tokens, and what it writes is spelled in the target's.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Universal assisted generation, transformers, 2024; Timor et al., Accelerating LLM inference with lossless "
    "speculative decoding algorithms for heterogeneous vocabularies, 2025 (string-level exact match)",
    reduces_to="plain where nothing is accepted",
    parent="plain",
    home="a target whose family has no small model, at low temperature",
    needs=(ANY_DRAFT,),
    aliases=("universal-assisted-generation", "universal assisted decoding", "uag"),
    arxiv="2502.05202",
)
PUBLISHED = PublishedPreset(
    unknown="how many tokens are drafted, and how much the draft reads, are the user's there"
)


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 3,
    context: Annotated[int, InRange(16, 65536), "most tokens that the draft reads"] = 512,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.other_tokenizer import OtherTokenizerDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # The draft's text is spelled in the target's tokens, which are certain candidates.
    return SpeculativeDecoder(
        kit.target,
        OtherTokenizerDrafter(kit.drafting, kit.target.vocab, context),
        MatchVerifier(),
        FixedPolicy(depth),
    )
