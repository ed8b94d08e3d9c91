"""SnapKV, a block at a time."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.presses._options import BlockEntries
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="snapkv",
    title="SnapKV (of each block what the next one looks at)",
    summary="Keeps of each block, and in each head, the entries that the last tokens of the next block attend to most.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Li et al., SnapKV: LLM knows what you are looking for before generation, 2024 (there once, at the prompt's end; "
    "here at every block, so that the law does not depend on where a prompt ends)",
    reduces_to="the cache as it is where all entries of a block are kept",
    home="long prompts of which little is asked for",
    aliases=("snap",),
    arxiv="2404.14469",
)
PUBLISHED = PublishedPreset(
    refused="entries go once there, at the prompt's end, and here at every block"
)


def build(
    *,
    kept: Annotated[int, InRange(1, 4096), "entries of a block that stay"] = 16,
    watch: Annotated[int, InRange(1, 4096), "last tokens of the next block that choose"] = 32,
    sinks: Annotated[int, InRange(0, 4096), "first tokens of the text that stay in any case"] = 4,
    block: BlockEntries = 64,
) -> CachePress:
    from polydec.methods.presses._selected_entries import ScorerPress, SnapKVRule

    return ScorerPress("snapkv", block, kept, sinks, SnapKVRule(watch))
