"""ToDRE."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, OneOf
from polydec.methods.presses._options import KeptShare, RandomSeed
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.sessions.image_press import ImagePress

CARD = Card(
    name="todre",
    title="ToDRE (few vectors of an image, and none in late layers)",
    summary="Of an image a few vectors that differ most from one another enter the language model, which drops these in the "
    "layer where the prompt's words no longer look at them.",
    kind="press",
    family="ar",
    guarantee=None,
    source="ToDRE: visual token pruning via diversity and task awareness for efficient large vision-language models, 2025 "
    "(greedy k-centre selection; where the first centre is and by how much attention must fall was not found, so both are "
    "ours)",
    reduces_to="the prompt as it is at keep=1 and fall=0; with choice=random what it must beat",
    home="images of many vectors, asked what they show on the whole; not for small print",
    aliases=("visual token pruning", "k-center visual tokens"),
)
PUBLISHED = PublishedPreset(
    unknown="where attention has fallen, and which vector comes first, was not found (fall, floor, earliest)"
)
READS_IMAGES = True


def build(
    *,
    keep: KeptShare = 0.1,
    choice: Annotated[
        str,
        OneOf("farthest", "sum", "random"),
        "next is the one farthest from its nearest among those taken, the one with the largest sum of distances from "
        "them, or any",
    ] = "farthest",
    seed: RandomSeed = 0,
    fall: Annotated[
        float,
        InRange(0.0, 1.0),
        "share of the most attention so far below which the image is dropped; 0: it is not",
    ] = 0.3,
    floor: Annotated[
        float, InRange(0.0, 1.0), "share of all attention below which it is dropped as well"
    ] = 0.0,
    earliest: Annotated[
        float, InRange(0.0, 1.0), "share of the layers that read it in any case"
    ] = 0.5,
    last: Annotated[
        bool, "ask the prompt's last token alone, not all words behind the last image"
    ] = False,
) -> ImagePress:
    from polydec.methods.presses._vector_choices import ShareOfVectors, vector_orders
    from polydec.models.sessions.image_fall import FallRule

    rule = FallRule(fall, floor, earliest, last)
    return ImagePress(
        "todre",
        ShareOfVectors(keep, vector_orders(seed)[choice]),
        None if rule.is_off else rule,
    )
