"""GEAR."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, OneOf
from polydec.methods.registry.card import Card
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


def build(
    *,
    bits: Annotated[int, OneOf(2, 4, 8), "of a number"] = 2,
    group: Annotated[
        int, InRange(0, 4096), "numbers that share a scale; 0: a whole channel's, or token's (KCVT)"
    ] = 64,
    rank: Annotated[int, InRange(0, 256), "of what is added for the rounding error"] = 4,
    value_rank: Annotated[
        int | None, InRange(0, 256), "of what is added to values; none: as rank"
    ] = None,
    prompt: Annotated[
        int, InRange(0, 10_000_000), "first tokens that count as the prompt; 0: all of the text"
    ] = 0,
    decoded_rank: Annotated[
        int | None, InRange(0, 256), "rank behind the prompt (published: 2); none: as within it"
    ] = None,
    decoded_value_rank: Annotated[
        int | None, InRange(0, 256), "of values behind the prompt; none: as decoded_rank"
    ] = None,
    outliers: Annotated[float, InRange(0, 1), "share of the numbers that is kept as it is"] = 0.02,
    block: Annotated[int, InRange(16, 4096), "entries that are packed at once"] = 128,
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
