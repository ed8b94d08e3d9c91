"""Arbitrage's oracle."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.search.recipes._options import StepDelimiter, StepTokens

CARD = Card(
    name="arbitrage-oracle",
    title="Arbitrage's oracle",
    summary="Both models write every step, and what a learned reward values more stands: what a router may reach.",
    kind="routing",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Arbitrage: Efficient reasoning via advantage-aware speculation, 2025",
    reduces_to="plain of the target at tau -2, of the draft at tau 1",
    parent="arbitrage",
    home="measuring what a router could win; it saves nothing",
    needs=(DRAFT, ArtefactNeed("prm")),
    needs_training=True,
    aliases=(),
)
PUBLISHED = PublishedPreset(
    {
        "delimiter": PublishedValue(
            "\\n\\n", "a step ends with an empty line; the small models here part steps by lines"
        ),
        "longest": PublishedValue(2048, "2048 tokens of a step at most"),
    },
    unknown="its threshold is swept: tau stays ours",
)


def build(
    kit: Kit,
    *,
    tau: Annotated[
        float, InRange(-2.0, 1.0), "advantage above which the target's step stands"
    ] = 0.0,
    delimiter: StepDelimiter = "\\n",
    longest: StepTokens = 64,
) -> Decoder:
    from polydec.methods.search.loop.arbiters import AdvantageArbiter
    from polydec.methods.search.loop.arbitrage import ArbitrageSearch
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.models.learned.kinds.step_reward import StepReward

    # Both models decode plainly; only the arbiter decides which step stands.
    big = undrafted_method(kit.target)
    small = undrafted_method(kit.drafting)
    return ArbitrageSearch(
        big,
        small,
        AdvantageArbiter(kit.needed_artefact(StepReward), tau),
        delimiter.replace("\\n", "\n"),
        longest,
    )
