"""Mixture of two models."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="mixture",
    title="Mixture of two models",
    summary="Draws each token from the model or, with a fixed chance, from a second one.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Jelinek and Mercer, Interpolated estimation of Markov source parameters from sparse data, 1980",
    reduces_to="no steering at share 0; the second model at share 1",
    home="a general model and a specialised one",
    needs=(DRAFT,),
    aliases=("interpolation", "ensemble"),
)
PUBLISHED = PublishedPreset(
    refused="the share is found on held-out text there, and yours to set here"
)


def build(
    kit: Kit,
    *,
    share: Annotated[
        float, InRange(0, 1), ValueNote("0 changes nothing"), "weight of the second model (--draft)"
    ] = 0.5,
) -> Target:
    from polydec.laws.contrasts.mixture import MixtureContrast
    from polydec.laws.targets.contrast import ContrastTarget

    # (1 - share) p + share q, at every token.
    return ContrastTarget(kit.target, (kit.drafting,), MixtureContrast(share))
