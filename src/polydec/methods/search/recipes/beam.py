"""Beam search."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import Note, Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit

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


def build(
    kit: Kit,
    *,
    width: Annotated[int, Within(1, 64), "texts that are followed at once"] = 4,
    length_penalty: Annotated[
        float,
        Within(-10, 10),
        Note("below 0 favours short texts"),
        "power of the length that divides a score",
    ] = 1.0,
    early: Annotated[
        bool | None,
        Note("none: when no text can win that is not there"),
        "true: stop at as many ended texts as beams; false: guess whether going on helps",
    ] = None,
) -> Decoder:
    from polydec.laws.targets.searched import searched
    from polydec.methods.search.loop.diverse_beam import DiverseBeam
    from polydec.methods.search.loop.ranking import Ranking

    return DiverseBeam(searched(kit.target), width, 1, 0.0, Ranking(length_penalty, early))
