"""A beam of steps."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.search.recipes._options import StepDelimiter, StepTokens

CARD = Card(
    name="step-beam",
    title="Beam of steps",
    summary="Draws several next steps behind the best beginnings of a solution and keeps what a learned reward values most.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Snell et al., Scaling LLM test-time compute optimally can be more effective than scaling model parameters, 2024",
    reduces_to="plain where one is kept and one is drawn; best-of-n where a step is a whole text",
    parent="best-of-n",
    home="problems in steps, with a reward that knows a wrong step",
    needs=(ArtefactNeed("prm"),),
    needs_training=True,
    aliases=("prm-beam-search", "process-reward-beam", "reward-guided-beam"),
    arxiv="2408.03314",
)
PUBLISHED = PublishedPreset(
    {
        "width": PublishedValue(4, "four next steps behind each beginning; ours draws two"),
    },
    unknown="how many beginnings are kept follows from the budget there, a fourth of the texts",
)


def build(
    kit: Kit,
    *,
    keep: Annotated[int, InRange(1, 64), "beginnings that are kept after a step"] = 2,
    width: Annotated[int, InRange(1, 64), "next steps that are drawn behind each"] = 2,
    delimiter: StepDelimiter = "\\n",
    longest: StepTokens = 64,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.methods.search.loop.step_beam import StepBeamSearch
    from polydec.models.learned.kinds.step_reward import StepReward

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to search.
    method = undrafted_method(drop_greedy_rule(kit.target))
    return StepBeamSearch(
        method,
        kit.needed_artefact(StepReward),
        keep,
        width,
        delimiter.replace("\\n", "\n"),
        longest,
    )
