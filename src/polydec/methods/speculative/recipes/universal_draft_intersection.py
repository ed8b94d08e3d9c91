"""Universal assisted decoding over the tokens that two vocabularies share."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ANY_DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="universal-draft-intersection",
    title="Universal assisted decoding over shared tokens",
    summary="A draft model of any tokenizer draws among the tokens that both vocabularies have, from a law that is known.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Timor et al., Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous "
    "vocabularies, 2025 (token-level intersection; in transformers since 4.50)",
    reduces_to="draft-model where the two tokenizers are one",
    parent="universal-draft",
    home="sampling with a draft of another tokenizer whose vocabulary is much the same",
    needs=(ANY_DRAFT,),
    aliases=("tli", "token-level intersection"),
)
PUBLISHED = PublishedPreset(unknown="how many tokens are drafted is the user's there")


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 2,
    context: Annotated[int, InRange(16, 65536), "most tokens that the draft reads"] = 512,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.shared_tokens import SharedTokensDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # Tokens are drawn from the draft's law on shared tokens: rejection sampling keeps the target's
    # law.
    return SpeculativeDecoder(
        kit.target,
        SharedTokensDrafter(kit.drafting, kit.target.vocab, context),
        ExactVerifier(),
        FixedPolicy(depth),
    )
