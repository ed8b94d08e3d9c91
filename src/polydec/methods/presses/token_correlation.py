"""Token-level correlation-guided compression."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.presses._options import RandomSeed
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.sessions.image_press import ImagePress

CARD = Card(
    name="token-correlation",
    title="Token-level correlation-guided compression (what repeats in an image goes)",
    summary="Of each tile of an image as many vectors enter the language model as repeat no pattern, those that the vision "
    "tower's class token looks at most.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Token-level correlation-guided compression for efficient multimodal document understanding, 2024 (how much "
    "repeats by patches' keys, which stay by the class token's attention in an early and in the last layer; its "
    "repository holds no code, so thresholds and the rule of outliers are ours)",
    reduces_to="the prompt as it is at copies=1, where nothing counts as repeated; with randomly=true what it must beat",
    home="documents in tiles, whose blank and ruled parts repeat",
    aliases=("correlation guided compression", "token correlation compressor"),
)
PUBLISHED = PublishedPreset(
    unknown="how alike patches that repeat are, how many must be, and the least that stay were not found (alike, copies, "
    "least)"
)
READS_IMAGES = True


def build(
    *,
    alike: Annotated[
        float, InRange(-1.0, 1.0), "cosine of two keys above which one vector repeats the other"
    ] = 0.75,
    copies: Annotated[
        float, InRange(0.0, 1.0), "share of all vectors of which more repeat a redundant one"
    ] = 0.05,
    least: Annotated[int, InRange(1, 4096), "vectors of a tile that stay in any case"] = 16,
    keep: Annotated[
        float, InRange(0.0, 1.0), "share of a tile's vectors that stay instead; 0: repeats decide"
    ] = 0.0,
    local: Annotated[
        float, InRange(0.0, 1.0), "which layer of the tower sees small marks, as a share of them"
    ] = 0.25,
    drawn: Annotated[
        bool, "draw those that fill the room by attention, and do not take the most"
    ] = False,
    average: Annotated[
        bool, "average what goes into the vector that stays and is most alike"
    ] = False,
    randomly: Annotated[bool, "as many vectors stay, but any: to compare with"] = False,
    seed: RandomSeed = 0,
) -> ImagePress:
    from polydec.methods.presses._correlation import CorrelationChoice, LookedAt, RepeatedPatterns
    from polydec.methods.presses._vector_choices import RandomOrder

    return ImagePress(
        "token-correlation",
        CorrelationChoice(
            RepeatedPatterns(alike, copies, least),
            LookedAt(local, drawn, seed),
            keep,
            RandomOrder(seed) if randomly else None,
            average,
        ),
    )
