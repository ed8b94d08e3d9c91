"""SVDecode."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="svdecode",
    title="SVDecode (distribution-aligned decoding)",
    summary="Goes further along the way from a model before tuning (--draft) to the tuned one.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Distribution-aligned decoding for efficient LLM task adaptation, 2025 (the head is our choice)",
    reduces_to="no steering at strength 0, and where both models are the same",
    home="a model that was tuned briefly for a task, beside what it was before",
    needs=(DRAFT,),
    aliases=("distribution-aligned decoding",),
    arxiv="2509.15888",
    published="up to 5 points more accuracy on multiple choice, 2 on open questions (nine benchmarks)",
)
PUBLISHED = PublishedPreset(
    unknown="its strength is calibrated on examples: `polydec train strength`"
)


def build(
    kit: Kit,
    *,
    strength: Annotated[
        float, InRange(0, 1000), ValueNote("0 changes nothing"), "how much further"
    ] = 1.0,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have to be moved",
    ] = 0.1,
) -> Target:
    from polydec.laws.contrasts.steered import SteeringVectorContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # log P + strength P (log(P / Q) - KL(P, Q)), with P of the tuned model and Q of the one before.
    return ContrastTarget(kit.target, (kit.drafting,), SteeringVectorContrast(strength, head))
