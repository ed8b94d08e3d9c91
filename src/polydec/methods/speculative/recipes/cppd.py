"""CPPD: a word is read at once, by counts and order of its letters."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import IMAGE, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._readers import needed_reader, reading_decoder

CARD = Card(
    name="cppd",
    title="CPPD, context perception parallel decoder",
    summary="A reader of its own names all letters of a word in an image in one pass; it learns to count and to order them.",
    kind="reading",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Du et al., Context perception parallel decoder for scene text recognition, 2023",
    reduces_to="plain, greedy, where the reader reads what the model does",
    parent="plain",
    home="words in images, no longer than those that were learned",
    needs=(IMAGE, needed_reader("cppd")),
    needs_training=True,
    aliases=("context perception parallel decoder",),
    arxiv="2307.12270",
    published="about 8 times as fast as its AR counterparts at similar accuracy",
)

PUBLISHED = PublishedPreset({})


def build(kit: Kit) -> Decoder:
    return reading_decoder(kit, "cppd")
