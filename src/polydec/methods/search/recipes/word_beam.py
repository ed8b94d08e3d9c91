"""A beam inside of words."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="word-beam",
    title="Beam inside of words",
    summary="Writes word by word: a beam over letters or tokens finds the likeliest whole word, then the next one.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="after Thawani et al., Learn your tokens: word-pooled tokenization for language modeling, 2023, whose "
    "words are spelt unit by unit",
    reduces_to="the likeliest of all words, scored one by one, where there are as many beams as beginnings",
    parent="beam",
    home="models over bytes and words, whose likeliest letter may begin no likely word",
    aliases=("word-by-word beam",),
)
PUBLISHED = PublishedPreset(
    unknown="whether the paper spells by a beam, how wide, and where a word ends could not be read: all of it is ours"
)


def build(
    kit: Kit,
    *,
    beams: Annotated[int, InRange(1, 64), "beginnings of a word that are followed"] = 5,
    longest: Annotated[int, InRange(1, 256), "tokens of a word, at which it is cut"] = 24,
    apart: Annotated[str, ValueNote("empty: white space"), "letters that part words"] = "",
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.word_beam import WordBeamSearch

    return WordBeamSearch(drop_greedy_rule(kit.target), beams, longest, apart)
