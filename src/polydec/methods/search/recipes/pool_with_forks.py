"""A pool of texts with forks, after HyPER."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.search.recipes._options import AnswerMark

CARD = Card(
    name="pool-with-forks",
    title="Pool with forks",
    summary="Draws several texts, forks the unsure ones early, gives up weak ones late, refines a mixture's tokens; what ends "
    "votes with a weight.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="after Qiu et al., HyPER: bridging exploration and exploitation for scalable LLM reasoning with hypothesis path "
    "expansion and reduction, 2026 (of which its abstract and beginning were read here: statistics, thresholds, noise and vote "
    "are ours)",
    reduces_to="self-consistency where no text is forked or given up and all votes weigh the same",
    parent="self-consistency",
    home="problems in long steps with short answers",
    aliases=("hyper", "hypothesis-path-expansion"),
    arxiv="2602.06527",
    published="8 to 10 % more accuracy with 25 to 40 % fewer tokens than earlier ways of several paths "
    "(four models with experts)",
)
PUBLISHED = PublishedPreset(
    refused="of HyPER's paper the abstract and the beginning were read, and the formulas here are ours"
)


def build(
    kit: Kit,
    *,
    tries: Annotated[int, InRange(1, 64), "texts at the beginning"] = 4,
    most: Annotated[int, InRange(1, 64), "texts that are written at a time, at most"] = 16,
    least: Annotated[
        int, InRange(1, 64), "texts that are left when others are given up: at most `most`"
    ] = 2,
    interval: Annotated[int, AtLeast(1), "passes between two looks at the texts"] = 64,
    budget: Annotated[int, AtLeast(1), "tokens of all texts together"] = 1024,
    sureness: Annotated[
        float,
        InRange(0.0, 100.0),
        "how much a vote weighs by its last quarter's mean log-probability",
    ] = 4.0,
    spread: Annotated[
        float,
        InRange(0.0, 100.0),
        ValueNote("0: none do"),
        "how far lengths may be from the median to count",
    ] = 1.0,
    mark: AnswerMark = "",
    ways: Annotated[
        int,
        InRange(1, 64),
        ValueNote("1: none; dense models have none"),
        "choices of experts that an unsure token is drawn from on average, late in a mixture's texts",
    ] = 4,
    stir: Annotated[
        float,
        InRange(0.0, 10.0),
        "noise of these choices, in standard deviations of the router's scores",
    ] = 0.2,
    above: Annotated[float, AtLeast(0), "entropy of the laws that are unsure so, nats"] = 1.0,
    early: Annotated[
        bool, "the vote is held as soon as no text that is still written can change the answer"
    ] = True,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.methods.search.loop.pool import HypothesisPoolSearch, PoolController, VoteWeights
    from polydec.methods.search.loop.refining import ExpertRefinement

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to vote on.
    method = undrafted_method(drop_greedy_rule(kit.target))
    # None for a dense model: then refining is worth nothing to the controller.
    refining = ExpertRefinement.of_target(method.target, ways, stir, above)
    # Forks and ends are decided by passes, not by time, so an answer is the same anywhere.
    control = PoolController(interval, least, most, refine=refining is not None)
    return HypothesisPoolSearch(
        method, control, VoteWeights(sureness, spread), mark, tries, budget, early, refining
    )
