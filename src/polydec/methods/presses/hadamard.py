"""Keys and values in few bits, behind a Hadamard transform."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.methods.presses._options import BlockEntries, PackedBits
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.models.nets.press import CachePress

CARD = Card(
    name="hadamard",
    title="Values behind a Hadamard transform (as QuaRot's), in few bits",
    summary="Keeps keys and values as integers of few bits; the dimensions of each head's values are mixed by random signs and "
    "a Walsh-Hadamard transform first, so that none stands out and a token needs one scale.",
    kind="press",
    family="ar",
    guarantee=None,
    source="Ashkboos et al., QuaRot: outlier-free 4-bit inference in rotated LLMs, 2024 (there keys are mixed too, behind "
    "their rotary embedding, and all scales are a token's, as are those of weights and activations; here keys stay as they "
    "are, scaled by channel as in `quantised`, which is nearer to the model's law)",
    reduces_to="the cache as it is for texts of up to two blocks; without rounding the model's law",
    parent="quantised",
    home="4 bits where every byte counts: 4.6 bits a number, scales included, where `quantised` takes 5.0 at the same distance "
    "(zoo:smollm2, heads of 64)",
    aliases=("quarot", "rotated values"),
    arxiv="2404.00456",
)
PUBLISHED = PublishedPreset(
    refused="keys, weights and activations are turned and rounded there, and here the cache alone"
)


def build(
    *,
    bits: PackedBits = 4,
    group: Annotated[
        int, InRange(0, 4096), "numbers of a key's channel that share a scale; 0: a block's"
    ] = 32,
    value_group: Annotated[
        int, InRange(0, 4096), "values of a token that share a scale; 0: all of them"
    ] = 0,
    block: BlockEntries = 64,
) -> CachePress:
    from polydec.methods.presses._quantised import QuantisedPress

    return QuantisedPress("hadamard", block, bits, group, hadamard=True, value_group=value_group)
