"""H2O."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="h2o",
    title="H2O (heavy hitters)",
    summary="Keeps the last tokens and, in each head, so many older entries: those that had most attention so far.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Zhang et al., H2O: heavy-hitter oracle for efficient generative inference of large language models, 2023 "
    "(there an entry goes with every token; here a block's at once)",
    reduces_to="the cache as it is for texts of up to `kept` tokens and two blocks",
    home="long texts in memory that does not grow",
    aliases=("heavy hitters", "heavy hitter oracle"),
    arxiv="2306.14048",
)
PUBLISHED = PublishedPreset(
    refused="an entry goes with every token there, and here those of a block at once"
)


def build(
    *,
    kept: Annotated[int, InRange(1, 65536), "older entries of each head that stay"] = 128,
    block: Annotated[int, InRange(16, 4096), "entries that are judged at once"] = 64,
) -> CachePress:
    from polydec.methods.presses._selected_entries import H2OPress

    return H2OPress("h2o", block, kept)
