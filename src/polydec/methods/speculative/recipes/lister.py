"""LISTER: a word is read from each letter to its neighbour, however long it is."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import IMAGE, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._readers import needed_reader, walking_decoder

CARD = Card(
    name="lister",
    title="LISTER, neighbour decoding",
    summary="A reader of its own says for every place of an image where the next letter stands; one walk over this matrix "
    "reads a word of any length.",
    kind="reading",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Cheng et al., LISTER: neighbor decoding for length-insensitive scene text recognition, 2023",
    reduces_to="plain, greedy, where the reader reads what the model does",
    parent="plain",
    home="words in images, also longer ones than those that were learned",
    needs=(IMAGE, needed_reader("lister")),
    needs_training=True,
    aliases=("neighbor decoding", "neighbour decoding"),
    arxiv="2308.12774",
    published="93.6 % of words on six benchmarks; reads lengths that were not trained",
)

PUBLISHED = PublishedPreset(
    {
        "rounds": PublishedValue(
            2, "the image is refined twice; ours as often as the reader was trained to"
        )
    }
)


def build(
    kit: Kit,
    *,
    rounds: Annotated[
        int | None,
        InRange(0, 8),
        ValueNote("none: as it was trained"),
        "walks behind the first, over an image that its letters refine",
    ] = None,
) -> Decoder:
    return walking_decoder(kit, "lister", rounds)
