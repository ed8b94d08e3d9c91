"""GEAR."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.presses._options import (
    BlockEntries,
    DecodedRank,
    DecodedValueRank,
    ErrorRank,
    PackedBits,
    PromptTokens,
    ScaleGroup,
    ValueRank,
)
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.models.nets.press import CachePress

CARD = Card(
    name="gear",
    title="GEAR (quantised, with outliers and the error's main directions)",
    summary="Keeps old keys and values in few bits, the most extreme numbers as they are, and adds a low-rank part of what is "
    "lost.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Kang et al., GEAR: an efficient KV cache compression recipe for near-lossless generative inference of LLM, 2024 "
    "(published: rank 4 for the prompt and 2 behind it, for which `prompt` says where it ends, 2 % outliers)",
    reduces_to="`quantised` at rank 0 without outliers; the cache as it is at full rank, or where all are outliers",
    home="2 bits where heads are wide; for heads of 64 plain 4 bits are smaller and better",
    aliases=("gear kv compression",),
    arxiv="2403.05527",
)
PUBLISHED = PublishedPreset(
    {
        "decoded_rank": PublishedValue(
            2,
            "behind the prompt the rank is 2; ours is the same everywhere, as `prompt` says where one "
            "ends",
        ),
        "block": PublishedValue(
            64, "64 entries are packed at once; ours are more, so that factors cost less"
        ),
    },
    unknown="where the prompt ends is yours to say (prompt)",
)


def build(
    *,
    bits: PackedBits = 2,
    group: ScaleGroup = 64,
    rank: ErrorRank = 4,
    value_rank: ValueRank = None,
    prompt: PromptTokens = 0,
    decoded_rank: DecodedRank = None,
    decoded_value_rank: DecodedValueRank = None,
    outliers: Annotated[float, InRange(0, 1), "share of the numbers that is kept as it is"] = 0.02,
    block: BlockEntries = 128,
) -> CachePress:
    from polydec.methods.presses._quantised import QuantisedPress

    return QuantisedPress(
        "gear",
        block,
        bits,
        group,
        rank,
        outliers,
        value_rank=value_rank,
        prompt=prompt,
        decoded_rank=decoded_rank,
        decoded_value_rank=decoded_value_rank,
    )
