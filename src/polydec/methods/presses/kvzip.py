"""KVzip, a block at a time."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="kvzip",
    title="KVzip (what a repeat of the text looks at)",
    summary="Reads each block of the text once more, right behind itself, and keeps in each head the entries that the repeat "
    "attends to most.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Kim et al., KVzip: query-agnostic KV cache compression with context reconstruction, 2025 (there a whole context is "
    "repeated behind a request to do so, and heads have budgets of different sizes; here every block is repeated, without "
    "such words, so that the law does not depend on where a prompt ends, and each head keeps as many)",
    reduces_to="the cache as it is where all entries of a block are kept",
    parent="snapkv",
    home="texts of which anything may be asked later; each token is read twice",
    aliases=("context reconstruction",),
    arxiv="2505.23416",
)
PUBLISHED = PublishedPreset(
    refused="a whole context is repeated there, behind a request to do so, and here every block by "
    "itself"
)


def build(
    *,
    kept: Annotated[int, InRange(1, 4096), "entries of a block that stay"] = 32,
    sinks: Annotated[int, InRange(0, 4096), "first tokens of the text that stay in any case"] = 4,
    block: Annotated[
        int, InRange(16, 4096), "entries that are packed at once; no draft may be deeper"
    ] = 128,
) -> CachePress:
    from polydec.methods.presses._selected_entries import ReconstructionRule, ScorerPress

    return ScorerPress("kvzip", block, kept, sinks, ReconstructionRule())
