"""Contrastive search."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import STATES, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="contrastive-search",
    title="Contrastive search",
    summary="Takes a likely token whose state differs from those of the text so far, without chance.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Su et al., A contrastive framework for neural text generation, 2022 (published: 4 to 10 candidates, penalty 0.6)",
    reduces_to="greedy decoding at one candidate, and at penalty 0",
    parent="plain",
    home="open-ended text of models whose states spread in all directions",
    aliases=("simctg",),
    arxiv="2202.06417",
    needs=(STATES,),
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    candidates: Annotated[int, InRange(1, 64), "likeliest tokens that are fed and compared"] = 5,
    penalty: Annotated[
        float, InRange(0, 1), ValueNote("0 is greedy"), "weight of the likeness to the text"
    ] = 0.6,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.contrastive_search import ContrastiveSearch

    # Candidates are compared with the states of all the prompt's tokens, so these must be fed.
    kit.read_prompt(CARD.name)
    # The greedy rule is dropped: at temperature 0 it leaves one text, and there is nothing to
    # compare.
    return ContrastiveSearch(drop_greedy_rule(kit.target), candidates, penalty)
