"""Diverse beam search."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.search.recipes._options import EarlyStop, LengthPower

CARD = Card(
    name="diverse-beam",
    title="Diverse beam search",
    summary="Searches for likely texts in groups of beams, each charged for the tokens that the groups before it chose.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Vijayakumar et al., Diverse beam search: decoding diverse solutions from neural sequence models, 2016 "
    "(published: width 10, groups 5, strength 0.5)",
    reduces_to="beam at one group; greedy decoding at width 1",
    parent="beam",
    home="several different answers to one prompt (--n): captions, translations, questions",
    aliases=("diverse beam search", "group beam search", "dbs"),
    arxiv="1610.02424",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "beams in all"] = 10,
    groups: Annotated[int, AtLeast(1), "groups of beams; divides width"] = 5,
    strength: Annotated[
        float, InRange(0, 100), "log-probability that a choice of an earlier group costs"
    ] = 0.5,
    length_penalty: LengthPower = 1.0,
    early: EarlyStop = None,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
    from polydec.methods.search.loop.ranking import LengthRanking

    # The greedy rule is dropped: at temperature 0 it leaves one text, and there is nothing to
    # search.
    return DiverseBeamSearch(
        drop_greedy_rule(kit.target), width, groups, strength, LengthRanking(length_penalty, early)
    )
