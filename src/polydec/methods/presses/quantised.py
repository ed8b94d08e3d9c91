"""Keys and values in few bits."""

from __future__ import annotations

from polydec.methods.presses._options import BlockEntries, PackedBits, ScaleGroup
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.models.nets.press import CachePress

CARD = Card(
    name="quantised",
    title="Quantised keys and values (KIVI, KCVT)",
    summary="Keeps old keys and values as integers of 8, 4 or 2 bits, keys scaled by channel and values by token.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Liu et al., KIVI: a tuning-free asymmetric 2bit quantization for KV cache, 2024 (published: 2 bits, groups of 32); "
    "KCVT, one scale for a whole channel or token, as a base of GEAR, 2024",
    reduces_to="the cache as it is for texts of up to two blocks",
    home="long texts where memory is short: 8 bits cost next to nothing, 4 bits a percent of perplexity",
    aliases=("kivi", "kcvt", "kv quantization"),
    arxiv="2402.02750",
)
PUBLISHED = PublishedPreset(
    {
        "bits": PublishedValue(2, "2 bits; ours has 8, which change next to nothing"),
        "block": PublishedValue(128, "the last 128 entries stay as they are; ours are 64 to 128"),
    }
)


def build(
    *,
    bits: PackedBits = 8,
    group: ScaleGroup = 32,
    block: BlockEntries = 64,
) -> CachePress:
    from polydec.methods.presses._quantised import QuantisedPress

    return QuantisedPress("quantised", block, bits, group)
