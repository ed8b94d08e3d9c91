"""Classifier-free guidance."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import SECOND_PROMPT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="cfg",
    title="Classifier-free guidance",
    summary="Raises what the prompt makes likelier than the negative prompt does, to the power of the scale.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Sanchez et al., Stay on topic with classifier-free guidance, 2023; Kornblith et al., Guiding image captioning "
    "models toward more specific captions, 2023 (published: scale 2)",
    reduces_to="no steering at scale 1; the negative prompt's law at scale 0",
    home="answers that must keep to the prompt; models trained with the condition dropped now and then",
    needs=(SECOND_PROMPT,),
    aliases=("classifier-free guidance", "guidance", "cfg-captioning", "negative prompt"),
    arxiv="2306.17806",
)
PUBLISHED = PublishedPreset(
    {
        "scale": PublishedValue(2.0, "captions are guided at 2; ours is what is usual for text"),
    }
)


def build(
    kit: Kit,
    *,
    scale: Annotated[
        float, InRange(0, 100), ValueNote("1 changes nothing"), "power of what the prompt adds"
    ] = 1.5,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have",
    ] = 0.0,
) -> Target:
    from polydec.laws.contrasts.difference import DifferenceContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # scale log p(token | prompt) - (scale - 1) log p(token | negative prompt): the weights add up
    # to 1.
    return ContrastTarget(kit.target, (kit.second,), DifferenceContrast(scale, scale - 1.0, head))
