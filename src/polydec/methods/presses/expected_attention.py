"""Expected Attention, a block at a time."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.presses._options import BlockEntries
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="expected-attention",
    title="Expected Attention",
    summary="Keeps of each block, and in each head, the entries to which normally distributed queries would attend most.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Devoto et al., Expected attention: KV cache compression by estimating attention from future queries "
    "distribution, 2025 (there queries are turned to the places that follow; here they "
    "are those of the next block, as they stand)",
    reduces_to="the cache as it is where all entries of a block are kept",
    parent="snapkv",
    home="long prompts of which little is asked for",
    aliases=("expected attention press",),
    arxiv="2510.00636",
)
PUBLISHED = PublishedPreset(
    refused="queries are turned to the places that follow there, and a budget is shared by all heads"
)


def build(
    *,
    kept: Annotated[int, InRange(1, 4096), "entries of a block that stay"] = 16,
    sinks: Annotated[int, InRange(0, 4096), "first tokens of the text that stay in any case"] = 4,
    block: BlockEntries = 64,
) -> CachePress:
    from polydec.methods.presses._selected_entries import ExpectedAttentionRule, ScorerPress

    return ScorerPress("expected-attention", block, kept, sinks, ExpectedAttentionRule())
