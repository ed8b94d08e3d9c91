"""Plan-guided re-ranking."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.search.recipes._options import EarlyStop, LengthPower

CARD = Card(
    name="plan-guided",
    title="Plan-guided re-ranking",
    summary="Plans in several ways which clauses of its source a text is to say, writes a text for each plan, and takes "
    "the best.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Adams et al., Generating EDU extracts for plan-guided summary re-ranking, 2023",
    reduces_to="beam search at 0 plans; the text of the likeliest plan at 1 plan, or at weight 0",
    parent="beam",
    home="summaries by an encoder-decoder model that was trained with marked clauses (train seq2seq --plans)",
    needs=(ArtefactNeed("plan-extractor"),),
    needs_training=True,
    aliases=("edu-plans", "pga", "edu-sum"),
    arxiv="2305.17779",
    published="0.88 ROUGE-2 more on CNN/DailyMail than the best published before it, with BRIO as judge",
)
PUBLISHED = PublishedPreset(
    {
        "length_penalty": PublishedValue(2.0, "of the texts, on CNN/DailyMail; ours favours none"),
        "early": PublishedValue(True, "beam search stops at as many ended texts as beams"),
    },
    unknown="the judge there is a calibrated model (BRIO), which is not built; no token may repeat a three-gram there "
    "(--no-repeat-ngram-size 3)",
)


def build(
    kit: Kit,
    *,
    plans: Annotated[
        int, InRange(0, 64), ValueNote("0: beam search"), "plans, and beams of the search for them"
    ] = 16,
    shortest: Annotated[int, InRange(1, 254), "clauses of a plan at least"] = 3,
    longest: Annotated[int, InRange(1, 254), "clauses of a plan at most"] = 20,
    plan_penalty: LengthPower = 1.0,
    width: Annotated[int, InRange(1, 64), "beams of each text"] = 4,
    length_penalty: LengthPower = 1.0,
    early: EarlyStop = None,
    judge_penalty: LengthPower = 1.0,
    weight: Annotated[
        float, InRange(0, 1), ValueNote("0: the likeliest plan's text"), "of the judge"
    ] = 1.0,
    own: Annotated[bool, "the model itself judges, even where a reward of texts is there"] = False,
) -> Decoder:
    # Imported here, so that listing the methods loads no network.
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.plan_guided import PlanBounds, PlanGuidedSearch
    from polydec.methods.search.loop.ranking import LengthRanking
    from polydec.models.learned.kinds.plan_extractor import PlanExtractor
    from polydec.models.learned.kinds.reward import TextReward

    # Every plan marks the prompt in another way, so that all of it is read anew.
    kit.read_prompt("plan-guided", plans > 0)
    # A reward is taken where one happens to be loaded; none is needed.
    judge = None if own else kit.find_artefact(TextReward)
    return PlanGuidedSearch(
        # At temperature 0 a law holds one token, and beams would have nothing to choose from.
        drop_greedy_rule(kit.target),
        kit.needed_artefact(PlanExtractor),
        kit.source,
        PlanBounds(plans, shortest, longest, plan_penalty),
        width,
        LengthRanking(length_penalty, early),
        judge_penalty,
        weight,
        None if judge is None else judge.judge,
    )
