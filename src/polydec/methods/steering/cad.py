"""Context-aware decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import SECOND_PROMPT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="cad",
    title="Context-aware decoding",
    summary="Strengthens what a passage in the prompt changes, against what the model would say without it.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Shi et al., Trusting your evidence: hallucinate less with context-aware decoding, 2023 (published: alpha 0.5 for "
    "summaries, 1 where facts were swapped)",
    reduces_to="no steering at alpha 0; cfg of scale 1 + alpha",
    home="questions whose passage contradicts what the model learned",
    needs=(SECOND_PROMPT,),
    aliases=("context-aware decoding",),
    arxiv="2305.14739",
)
PUBLISHED = PublishedPreset(unknown="where facts were swapped it has alpha=1")


def build(
    kit: Kit,
    *,
    alpha: Annotated[
        float, InRange(0, 99), ValueNote("0 changes nothing"), "strength of the contrast"
    ] = 0.5,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have",
    ] = 0.0,
) -> Target:
    from polydec.laws.contrasts.difference import DifferenceContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # (1 + alpha) log p(token | with the passage) - alpha log p(token | without it).
    return ContrastTarget(kit.target, (kit.second,), DifferenceContrast(1.0 + alpha, alpha, head))
