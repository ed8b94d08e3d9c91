"""Transfer Q*."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="transfer-q-star",
    title="Transfer Q*",
    summary="Takes each token by what the texts are worth, to a reward, that an aligned model writes behind it.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Chakraborty et al., Transfer Q*: principled decoding for LLM alignment, 2024; at length 0 ARGS: Khanov et al., "
    "ARGS: alignment as reward-guided search, 2024",
    reduces_to="greedy decoding at one candidate and at weight 0, ARGS at length 0",
    parent="best-of-n",
    home="text that should have a property which a classifier or a function tells; --with a reward of texts",
    needs=(ArtefactNeed("reward"),),
    needs_training=True,
    aliases=("tq-star", "args", "reward-guided-search"),
    arxiv="2405.20495",
)
PUBLISHED = PublishedPreset(
    {
        "prompted": PublishedValue(
            True,
            "the reward reads prompt and answer; ours is of the answer alone, as it is trained",
        )
    }
)


def build(
    kit: Kit,
    *,
    candidates: Annotated[int, InRange(1, 64), "likeliest tokens that are compared"] = 10,
    length: Annotated[
        int, AtLeast(0), ValueNote("0: ARGS"), "tokens that are written behind each, at most"
    ] = 20,
    tries: Annotated[int, InRange(1, 64), "texts that are drawn behind each"] = 1,
    weight: Annotated[
        float, AtLeast(0), ValueNote("0 is greedy"), "nats that a unit of reward is worth"
    ] = 1.0,
    heat: Annotated[
        float, AtLeast(0), "a token is drawn by its score over this (0: the best is taken)"
    ] = 0.0,
    own: Annotated[
        bool, "the model itself writes behind candidates, else the draft model does"
    ] = True,
    prompted: Annotated[
        bool, "the reward reads the prompt's text and the answer behind it, else the answer alone"
    ] = False,
    indirect: Annotated[
        float,
        AtLeast(0),
        ValueNote("0: direct transfer; research code: 2"),
        "the draft model was aligned, with this pull to its origin, to the second reward of --with",
    ] = 0.0,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.transfer import TransferQSearch
    from polydec.models.learned.kinds.reward import TextReward

    # Continuations follow the request's rules, greedy at temperature 0; candidates are compared
    # under the law before the greedy rule.
    baseline = kit.target if own else kit.drafting
    reward = kit.needed_artefact(TextReward)
    asked_by = f"indirect is {indirect:g}, and beside the first one "
    other = (
        kit.needed_artefact(TextReward, lambda x: x is not reward, asked_by).judge
        if indirect
        else None
    )
    return TransferQSearch(
        drop_greedy_rule(kit.target),
        reward.judge,
        baseline,
        own,
        candidates,
        length,
        tries,
        weight,
        heat,
        prompted,
        indirect,
        other,
    )
