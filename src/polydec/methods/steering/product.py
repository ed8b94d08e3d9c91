"""Product of two models."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="product",
    title="Product of two models",
    summary="Writes what the model and a second one both find likely: their log-probabilities are averaged.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Hinton, Products of experts, 1999; over bytes: Hsu et al., Let's fuse step by step: a generative fusion decoding "
    "algorithm with LLMs for ASR and OCR, 2024 (as a law, normalised at every byte, which the published score is not)",
    reduces_to="no steering at share 0; the second model at share 1",
    home="a model that hears or translates, and one that knows the language",
    needs=(DRAFT,),
    aliases=("product of experts", "shallow fusion"),
)
PUBLISHED = PublishedPreset(
    refused="as a law no paper has it: the published score is `--method generative-fusion-decoding`"
)


def build(
    kit: Kit,
    *,
    share: Annotated[
        float, InRange(0, 1), ValueNote("0 changes nothing"), "weight of the second model (--draft)"
    ] = 0.5,
) -> Target:
    from polydec.laws.contrasts.product import ProductContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # (1 - share) log p + share log q, normalised at every token.
    return ContrastTarget(kit.target, (kit.drafting,), ProductContrast(share))
