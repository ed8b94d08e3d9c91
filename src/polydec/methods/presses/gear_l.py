"""GEAR-L."""

from __future__ import annotations

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
    name="gear-l",
    title="GEAR-L (quantised, with the error's main directions)",
    summary="Keeps old keys and values in few bits, and adds a low-rank part of what is lost; no outliers are set apart.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Kang et al., GEAR: an efficient KV cache compression recipe for near-lossless generative inference of LLM, 2024 "
    "(its cheaper variant)",
    reduces_to="`quantised` at rank 0; the cache as it is at full rank",
    home="as `gear`, where outliers cost more than they bring",
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
    block: BlockEntries = 128,
) -> CachePress:
    from polydec.methods.presses._quantised import QuantisedPress

    return QuantisedPress(
        "gear-l",
        block,
        bits,
        group,
        rank,
        value_rank=value_rank,
        prompt=prompt,
        decoded_rank=decoded_rank,
        decoded_value_rank=decoded_value_rank,
    )
