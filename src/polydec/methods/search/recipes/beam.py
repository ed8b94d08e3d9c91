"""Beam search."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.search.recipes._options import EarlyStop, LengthPower

CARD = Card(
    name="beam",
    title="Beam search",
    summary="Keeps the likeliest beginnings at every step, and answers with the likeliest texts.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Lowerre, The HARPY speech recognition system, 1976; length penalty and early stopping as in transformers",
    reduces_to="greedy decoding at width 1; the likeliest text where the width covers all texts",
    parent="plain",
    home="short answers with one right text: translation, captions, transcription",
    aliases=("beam-search",),
)
PUBLISHED = PublishedPreset(
    refused="its width and its penalty are another in every paper, and none of them is the one"
)


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "texts that are followed at once"] = 4,
    length_penalty: LengthPower = 1.0,
    early: EarlyStop = None,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
    from polydec.methods.search.loop.ranking import LengthRanking

    # Plain beam search is diverse beam search with one group, which no other group charges. The
    # greedy rule is dropped: at temperature 0 it leaves one text, and there is nothing to search.
    return DiverseBeamSearch(
        drop_greedy_rule(kit.target), width, 1, 0.0, LengthRanking(length_penalty, early)
    )
