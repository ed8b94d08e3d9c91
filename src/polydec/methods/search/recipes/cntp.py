"""Cautious next token prediction."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="cntp",
    title="Cautious next token prediction",
    summary="Where the model is unsure, draws several ways on up to the next punctuation and takes the likeliest.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Wang et al., Cautious next token prediction, 2025 (published: 1 to 10 trials, 0.01 to 1.5 nats)",
    reduces_to="plain where most is 1",
    parent="plain",
    home="reasoning at temperatures near 1",
    aliases=("cautious-next-token-prediction",),
    arxiv="2507.03038",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    most: Annotated[int, InRange(1, 64), "trials where the law is flattest"] = 10,
    low: Annotated[float, AtLeast(0), "entropy up to which there is one trial, in nats"] = 0.01,
    high: Annotated[float, AtLeast(0), "entropy from which there are `most`, in nats"] = 1.5,
    longest: Annotated[int, AtLeast(1), "tokens of a trial at most"] = 64,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.cautious import CautiousSearch
    from polydec.methods.search.loop.plain_texts import undrafted_method

    # Texts are drawn without drafts: the entropy is looked at before every token. The greedy rule
    # is dropped: at temperature 0 it leaves one text, and there is nothing to try.
    return CautiousSearch(
        undrafted_method(drop_greedy_rule(kit.target)),
        1,
        most,
        low,
        high,
        longest,
    )
