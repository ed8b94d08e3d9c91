"""Stochastic beam search."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="stochastic-beam-search",
    title="Stochastic beam search",
    summary="Draws several texts without replacement: no two answers are the same.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Kool, van Hoof and Welling, Stochastic beams and where to find them, 2019",
    reduces_to="plain sampling at width 1",
    parent="plain",
    home="several different answers (--n) that are draws, not the likeliest ones",
    aliases=("sbs", "gumbel-top-k-search"),
    arxiv="1903.06059",
)
PUBLISHED = PublishedPreset(unknown="how many texts are drawn is the user's there")


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "texts that are drawn"] = 4,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.stochastic_beam import StochasticBeamSearch

    # The greedy rule is dropped: at temperature 0 it leaves one text, and there is nothing to draw.
    return StochasticBeamSearch(drop_greedy_rule(kit.target), width)
