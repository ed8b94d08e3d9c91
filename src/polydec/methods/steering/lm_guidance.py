"""Guidance from a language model."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, SECOND_PROMPT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="lm-guidance",
    title="Guidance from a language model",
    summary="A second model says what is well written; what the prompt makes likelier than the negative prompt is added to it.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Kornblith et al., Guiding image captioning models toward more specific captions, 2023 (the weight of the language "
    "model is our choice)",
    reduces_to="cfg where the second model is this one behind the negative prompt",
    home="a model that knows what to say and little of how to say it",
    needs=(SECOND_PROMPT, DRAFT),
    aliases=("language model guidance",),
    arxiv="2307.16686",
)
PUBLISHED = PublishedPreset(
    unknown="the weight of the language model could not be read, and is ours"
)


def build(
    kit: Kit,
    *,
    scale: Annotated[float, InRange(0, 100), "weight of what the prompt adds"] = 1.5,
    share: Annotated[float, InRange(0, 100), "weight of the second model (--draft)"] = 1.0,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have",
    ] = 0.1,
) -> Target:
    from polydec.laws.contrasts.language import LanguageModelContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # share log q + scale (l - m), with q of the language model, l and m of the two prompts.
    return ContrastTarget(
        kit.target, (kit.second, kit.drafting), LanguageModelContrast(scale, share, head)
    )
