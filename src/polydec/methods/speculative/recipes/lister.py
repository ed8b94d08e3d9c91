"""LISTER: a word is read from each letter to its neighbour, however long it is."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import IMAGE, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._readers import reading_decoder, reads_by

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
    needs=(
        IMAGE,
        ArtefactNeed("word-reader", "a reader with a head of lister", reads_by("lister")),
    ),
    needs_training=True,
    aliases=("neighbor decoding", "neighbour decoding"),
    arxiv="2308.12774",
    published="93.6 % of words on six benchmarks; reads lengths that were not trained",
)

PUBLISHED = PublishedPreset(
    refused="the rounds that refine features are not built, and scores have a bias of each distance here"
)


def build(kit: Kit) -> Decoder:
    return reading_decoder(kit, "lister")
