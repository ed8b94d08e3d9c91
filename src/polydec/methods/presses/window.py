"""StreamingLLM's window."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="window",
    title="Window with sinks (StreamingLLM)",
    summary="Keeps the first tokens of a text and the last ones; what lies between is forgotten.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Xiao et al., Efficient streaming language models with attention sinks, 2023 (published: 4 sinks; there positions "
    "are counted anew within the window, here they stay, so the context is the model's)",
    reduces_to="the cache as it is for texts of up to two blocks",
    home="texts of which only the last part matters, in memory that does not grow",
    aliases=("streaming llm", "streamingllm", "attention sinks"),
    arxiv="2309.17453",
)
PUBLISHED = PublishedPreset(
    refused="positions are counted anew within the window there, and here they stay"
)


def build(
    *,
    sinks: Annotated[int, InRange(0, 4096), "first tokens that stay"] = 4,
    block: Annotated[int, InRange(16, 4096), "one to two times so many last tokens stay"] = 128,
) -> CachePress:
    from polydec.methods.presses._selected_entries import WindowPress

    return WindowPress("window", block, sinks)
