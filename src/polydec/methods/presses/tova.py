"""TOVA."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="tova",
    title="TOVA (what the last token looks at)",
    summary="Keeps the last tokens and so many older entries, the same in all heads: those that one token attended to most.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Oren et al., Transformers are multi-state RNNs, 2024 (there an entry goes with every token; here a "
    "block's at once)",
    reduces_to="the cache as it is for texts of up to `kept` tokens and two blocks",
    parent="h2o",
    home="long texts in memory that does not grow",
    aliases=("multi-state rnn",),
    arxiv="2401.06104",
)
PUBLISHED = PublishedPreset(
    refused="an entry goes with every token there, and here those of a block at once"
)


def build(
    *,
    kept: Annotated[int, InRange(1, 65536), "older entries that stay"] = 128,
    block: Annotated[int, InRange(16, 4096), "entries that are judged at once"] = 64,
) -> CachePress:
    from polydec.methods.presses._selected_entries import TovaPress

    return TovaPress("tova", block, kept)
