"""Dynamic tokenization: answers in merged tokens."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import STATES, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="merged-answers",
    title="Dynamic tokenization (answers in merged tokens)",
    summary="Writes tokens and units of several tokens, whose vectors a hypernetwork makes, one in each pass.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Feher, Vulić and Minixhofer, Retrofitting large language models with dynamic tokenization, 2024",
    reduces_to="greedy decoding at 0 units",
    parent="plain",
    home="texts in words that the tokenizer cuts into pieces, with a hypernetwork that was trained for it "
    "(`polydec train hypernetwork --answers 500`)",
    needs=(STATES, ArtefactNeed("hypernetwork")),
    needs_training=True,
    aliases=("answers in merged tokens",),
    published="an index of a million tokens, of which the 20 nearest are compared",
)
PUBLISHED = PublishedPreset(
    refused="its vocabulary of a million tokens and the index over it are not here; 20 candidates are the default"
)


def build(
    kit: Kit,
    *,
    candidates: Annotated[
        int, InRange(1, 4096), "likeliest tokens and units that are left to draw from"
    ] = 20,
    units: Annotated[
        int,
        InRange(0, 1 << 20),
        ValueNote("0: tokens alone"),
        "units that may be written, the most frequent ones, at most as many as were trained",
    ] = 1 << 20,
    heat: Annotated[
        float, AtLeast(0), "one is drawn by its weight over this (0: the likeliest is taken)"
    ] = 0.0,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.merged_answers import MergedTokenWriter
    from polydec.models.learned.kinds.hypernetwork import MergedTokenMaker

    maker = kit.needed_artefact(MergedTokenMaker)
    return MergedTokenWriter(drop_greedy_rule(kit.target), maker, candidates, units, heat)
