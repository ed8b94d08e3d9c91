"""USCD."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import SECOND_PROMPT, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.steering._examples import without_examples

CARD = Card(
    name="uscd",
    title="USCD (uncertainty-aware selective contrastive decoding)",
    summary="Contrasts the prompt with itself without its examples, only at tokens where the prompt's law is unsure.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Wang et al., Improving code generation of LLMs by uncertainty-aware selective contrastive decoding, 2024 "
    "(threshold and strength: our choice)",
    reduces_to="no steering at threshold 0; cad of alpha = strength at threshold 2 and head 0",
    home="programs asked for with examples of input and output",
    needs=(SECOND_PROMPT,),
    aliases=("selective contrastive decoding",),
    arxiv="2409.05923",
    published="16.59 % more programs right at the first try, relative, on average (HumanEval, MBPP, "
    "MultiPL-E)",
)
PUBLISHED = PublishedPreset(
    unknown="its threshold and its strength could not be read, and are ours"
)

derive = without_examples
"""The second prompt, where none is given."""


def build(
    kit: Kit,
    *,
    threshold: Annotated[
        float,
        InRange(0, 2),
        ValueNote("0: never, above 1: always"),
        "sureness (0 to 1) of the law below which it is contrasted",
    ] = 0.8,
    strength: Annotated[float, InRange(0, 99), "strength of the contrast"] = 0.5,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have",
    ] = 0.1,
) -> Target:
    from polydec.laws.contrasts.difference import DifferenceContrast
    from polydec.laws.contrasts.gated import GatedContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # The contrast of context-aware decoding, only where the prompt's law is unsure.
    return ContrastTarget(
        kit.target,
        (kit.second,),
        GatedContrast(DifferenceContrast(1.0 + strength, strength, head), threshold),
    )
