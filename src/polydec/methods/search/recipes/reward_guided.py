"""Reward-guided speculative decoding."""

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
    name="reward-guided",
    title="Reward-guided speculative decoding",
    summary="The draft model writes whole steps, and the target those that a learned reward values little.",
    kind="routing",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Liao et al., Reward-guided speculative decoding for efficient LLM reasoning, 2025",
    reduces_to="plain of the draft at tau 0, of the target at tau 2",
    parent="arbitrage",
    home="problems in steps, with a reward that knows a wrong step",
    needs=(DRAFT, ArtefactNeed("prm")),
    needs_training=True,
    aliases=("reward-guided-speculative-decoding",),
    arxiv="2501.19324",
)
PUBLISHED = PublishedPreset(
    {
        "delimiter": PublishedValue(
            "\\n\\n", "a step ends with an empty line; ours with any line, as zoo:reasoner writes"
        ),
    }
)


def build(
    kit: Kit,
    *,
    tau: Annotated[
        float,
        InRange(0.0, 2.0),
        "value of a step below which the target writes it, above 1: always",
    ] = 0.7,
    delimiter: StepDelimiter = "\\n",
    longest: StepTokens = 64,
) -> Decoder:
    from polydec.methods.search.loop.arbiters import ValueArbiter
    from polydec.methods.search.loop.arbitrage import ArbitrageSearch
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.models.learned.kinds.step_reward import StepReward

    # Both models decode plainly; only the arbiter decides which step stands.
    big = undrafted_method(kit.target)
    small = undrafted_method(kit.drafting)
    return ArbitrageSearch(
        big,
        small,
        ValueArbiter(kit.needed_artefact(StepReward), tau),
        delimiter.replace("\\n", "\n"),
        longest,
    )
