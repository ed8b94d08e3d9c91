"""Conditional beam search."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import STATES, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="conditional-beam",
    title="Conditional beam search",
    summary="Searches the likeliest text of those that a trained head's condition holds of: one that has a length, or says "
    "something.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Yoshida, Making the most of your model, 2024",
    reduces_to="beam search without a length penalty where the condition always holds",
    parent="beam",
    home="likeliest texts that are not empty, cut short or off their subject",
    needs=(STATES, ArtefactNeed("outcome-head")),
    needs_training=True,
    aliases=("conditional-beam-search",),
)
PUBLISHED = PublishedPreset(
    refused="a published classifier is fed each beginning that it judges; here one product judges all "
    "tokens that may follow"
)


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "texts that are followed at once"] = 5,
    candidates: Annotated[
        int, InRange(1, 4096), "likeliest tokens of a text that the head is asked of"
    ] = 50,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
    from polydec.methods.search.loop.ranking import LengthRanking
    from polydec.models.learned.kinds.outcome_head import OutcomeHead

    # A length penalty would be another aim: what is searched is the likeliest text given the condition.
    return DiverseBeamSearch(
        drop_greedy_rule(kit.target),
        width,
        1,
        0.0,
        LengthRanking(0.0),
        kit.needed_artefact(OutcomeHead),
        candidates,
    )
