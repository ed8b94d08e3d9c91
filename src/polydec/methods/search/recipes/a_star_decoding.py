"""A*-decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.search.recipes._options import StepDelimiter, StepTokens

CARD = Card(
    name="a-star-decoding",
    title="A*-decoding",
    summary="Goes on with the most promising beginning of a solution, several next steps at a time, led by a learned reward.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Chatziveroglou, A*-decoding: token-efficient inference scaling, 2025",
    reduces_to="plain at width 1",
    parent="best-of-n",
    home="problems in steps, with a reward that knows a wrong step",
    needs=(ArtefactNeed("prm"),),
    needs_training=True,
    aliases=("a-star", "a*"),
    arxiv="2505.13672",
    published="the accuracy of best of n with up to 3 times fewer tokens and 30 % fewer calls of the reward "
    "(Llama 3.2 1B, MATH500 and AIME24)",
)
PUBLISHED = PublishedPreset(refused="its widths and budgets could not be read")


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "next steps that are drawn at a time"] = 4,
    delimiter: StepDelimiter = "\\n",
    longest: StepTokens = 64,
    budget: Annotated[int, AtLeast(1), "nothing is begun after so many tokens"] = 1024,
    toll: Annotated[float, AtLeast(0), "cost of a step"] = 0.01,
    again: Annotated[
        float | None,
        InRange(0.001, 10.0),
        ValueNote("none: it is left for good"),
        "what a beginning waits for before more steps are drawn behind it",
    ] = None,
    sure: Annotated[
        float | None,
        InRange(0.001, 1.0),
        ValueNote("none: every step"),
        "the reward is not asked of a step that is as likely as this",
    ] = None,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.a_star import AStarSearch
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.models.learned.kinds.step_reward import StepReward

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to search.
    method = undrafted_method(drop_greedy_rule(kit.target))
    return AStarSearch(
        method,
        kit.needed_artefact(StepReward),
        width,
        delimiter.replace("\\n", "\n"),
        longest,
        budget,
        toll,
        again=again,
        sure=sure,
    )
