"""Contrastive decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="contrastive-decoding",
    title="Contrastive decoding",
    summary="Favours what a large model finds likelier than a small one does, among what the large one finds plausible.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Li et al., Contrastive decoding: open-ended text generation as optimization, 2022 (original: beta 1, amateur "
    "temperature 0.5); O'Brien and Lewis, Contrastive decoding improves reasoning, 2023 (beta 0.5)",
    reduces_to="no steering at beta 0 and head 0; greedy decoding at head 1",
    home="open-ended text with a model that repeats itself, and a smaller one that does so more",
    needs=(DRAFT,),
    aliases=("cd", "expert-amateur"),
    arxiv="2210.15097",
)
PUBLISHED = PublishedPreset(
    {
        "original": PublishedValue(
            True, "the large model weighs 1; ours, as later work on reasoning has it, 1 + beta"
        ),
        "beta": PublishedValue(1.0, "both models weigh alike"),
        "amateur_temperature": PublishedValue(
            0.5, "the small model's law is sharpened; ours is taken as it is"
        ),
    }
)


def build(
    kit: Kit,
    *,
    beta: Annotated[float, InRange(0, 99), "weight of the small model (--draft)"] = 0.5,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have",
    ] = 0.1,
    original: Annotated[bool, "the large model weighs 1, not 1 + beta"] = False,
    amateur_temperature: Annotated[
        float, InRange(0.00001, 1000), "temperature of the small model"
    ] = 1.0,
) -> Target:
    from polydec.laws.contrasts.difference import DifferenceContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # (1 + beta) l - beta m / temperature, with l of the large model and m of the small one; as
    # first published l weighs 1.
    return ContrastTarget(
        kit.target,
        (kit.drafting,),
        DifferenceContrast(1.0 + beta * (not original), beta, head, amateur_temperature),
    )
