"""A masked-diffusion model, trained to go on with a target's text, drafts blocks for it."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import MASKED_DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="deer",
    title="DEER",
    aliases=("draft with diffusion",),
    summary="A masked-diffusion model drafts a block behind the text in one pass, each gap from its own law.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="DEER: draft with diffusion, verify with autoregressive models, 2025",
    reduces_to="plain where nothing is accepted",
    parent="plain",
    home="templated text, with a draft that `polydec train deer` made on the target's own text",
    needs=(MASKED_DRAFT,),
    published="5.54 times plain decoding on HumanEval (Qwen3-30B-A3B; EAGLE-3: 2.41 times), about 5 tokens accepted on average "
    "and 32 at most",
)
PUBLISHED = PublishedPreset(
    {
        "block": PublishedValue(32, "drafts of up to 32 tokens; ours has 8"),
    }
)


def build(
    kit: Kit,
    *,
    block: Annotated[int, InRange(0, 64), "tokens drafted a pass (published: up to 32)"] = 8,
    heat: Annotated[
        float,
        InRange(0, 1000),
        "temperature of the draft's laws; 0: the likeliest token of each gap, with certainty",
    ] = 0.0,
    keep: Annotated[
        bool,
        "the text keeps the keys and values of the pass that saw it first; only what is new is fed: other drafts, the same law",
    ] = False,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.filled_gaps import FilledGapsDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # `keep` saves passes over the text; it changes what is drafted, never what is written.
    drafter = FilledGapsDrafter(kit.masked_draft, heat, keep)
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(block))
