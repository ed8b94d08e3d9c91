"""Adaptive weighted rejection sampling with sequential Monte Carlo."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="awrs",
    title="Adaptive weighted rejection sampling",
    summary="Draws whole texts that a constraint allows by weighted particles: without masks, and without the bias of masks.",
    kind="constraint",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Lipkin et al., Fast controlled generation from language models with adaptive weighted rejection sampling, 2025",
    reduces_to="plain sampling without a constraint; masked sampling with one particle",
    parent="plain",
    home="constraints under which most beginnings lead nowhere: molecules, queries, proofs",
    aliases=("adaptive weighted rejection sampling", "smc", "sequential monte carlo"),
    arxiv="2504.05410",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    particles: Annotated[int, InRange(1, 256), "texts that are drawn together for each answer"] = 8,
    threshold: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0: never"),
        "share of effective particles below which they are drawn anew",
    ] = 0.5,
    accepts: Annotated[int, InRange(2, 64), "allowed draws of the geometric estimator"] = 2,
    certain: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0: always the geometric one"),
        "largest probability of a token up to which the recursive estimator is used",
    ] = 2 / 3,
    looks: Annotated[
        int, InRange(1, 100000), "tokens looked at one by one before all are, by one mask"
    ] = 32,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.laws.targets.unconstrained import drop_constraint_rule
    from polydec.methods.search.loop.particles import ParticleSearch

    # The particles check the language themselves: a masked law would hide how much of the law it
    # allows.
    return ParticleSearch(
        drop_greedy_rule(drop_constraint_rule(kit.target)),
        kit.language,
        particles,
        threshold,
        accepts,
        certain,
        looks,
    )
