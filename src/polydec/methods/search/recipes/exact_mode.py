"""The exact mode."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="exact-mode",
    title="Exact mode",
    summary="Finds the likeliest text of all, or of all of one length, and proves it by depth-first search.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Stahlberg, Byrne, On NMT search errors and model errors: cat got your tongue?, 2019; by length: Yoshida, Making "
    "the most of your model, 2024",
    reduces_to="the best of all texts, scored one by one",
    parent="beam",
    home="short answers of sharp laws, and studies of what a model holds likeliest",
    aliases=("exact-map", "conditional-mode"),
    arxiv="1908.10090",
)
PUBLISHED = PublishedPreset(
    unknown="its searches end when the mode is proven, however long that takes; ours give up after `most` beginnings"
)


def build(
    kit: Kit,
    *,
    length: Annotated[
        int, AtLeast(0), ValueNote("0: any"), "tokens that a text must have before its end"
    ] = 0,
    width: Annotated[int, InRange(1, 256), "answers that can be asked for, at most"] = 16,
    most: Annotated[
        int, AtLeast(1), "beginnings that are looked at, at most, before it gives up"
    ] = 20_000,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.exact_mode import ExactModeSearch

    # The greedy rule is dropped: at temperature 0 it leaves one text, and there is nothing to
    # search.
    return ExactModeSearch(drop_greedy_rule(kit.target), length, width, most)
