"""AdaCAD."""

from __future__ import annotations

import math
from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import SECOND_PROMPT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="adacad",
    title="AdaCAD (adaptive context-aware decoding)",
    summary="Context-aware decoding whose strength is, at each token, how far the laws with and without the passage differ.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Wang et al., AdaCAD: adaptively decoding to balance conflicts between contextual and parametric knowledge, 2024 "
    "(published: floor 0 for questions, 0.3 for summaries)",
    reduces_to="no steering where both prompts are the same",
    home="questions of which only some contradict their passage",
    needs=(SECOND_PROMPT,),
    aliases=("adaptive context-aware decoding",),
    arxiv="2409.07394",
    published="14.21 points more accuracy on average than CAD with a fixed strength (six sets of questions, "
    "four models)",
)
PUBLISHED = PublishedPreset(unknown="for summaries it has floor=0.3")


def build(
    kit: Kit,
    *,
    floor: Annotated[float, InRange(0, 10), "least strength of the contrast"] = 0.0,
    base: Annotated[
        float,
        InRange(1.01, 10),
        ValueNote("2: the strength is 1 at most; 1.26: 3"),
        "of the logarithm in which the laws' divergence is measured",
    ] = math.e,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have",
    ] = 0.0,
) -> Target:
    from polydec.laws.contrasts.adaptive import AdaptiveContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # (1 + a) l - a m, with a the divergence of the two laws at each token, at least `floor`.
    return ContrastTarget(kit.target, (kit.second,), AdaptiveContrast(floor, head, base))
