"""KeyDiff, a block at a time."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.presses._options import BlockEntries
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="keydiff",
    title="KeyDiff (keys unlike the others)",
    summary="Keeps of each block, and in each head, the entries whose keys point elsewhere than the block's mean.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Park et al., KeyDiff: key similarity-based KV cache eviction for long-context LLM inference in "
    "resource-constrained environments, 2025 (there the mean is over the whole cache; here over a block)",
    reduces_to="the cache as it is where all entries of a block are kept",
    parent="snapkv",
    home="caches that must be small without keeping queries",
    aliases=("key diff",),
    arxiv="2504.15364",
)
PUBLISHED = PublishedPreset(refused="the mean is over the whole cache there, and here over a block")


def build(
    *,
    kept: Annotated[int, InRange(1, 4096), "entries of a block that stay"] = 16,
    sinks: Annotated[int, InRange(0, 4096), "first tokens of the text that stay in any case"] = 4,
    block: BlockEntries = 64,
) -> CachePress:
    from polydec.methods.presses._selected_entries import KeyDiffRule, ScorerPress

    return ScorerPress("keydiff", block, kept, sinks, KeyDiffRule())
