"""Speculative sampling with depths that a bandit chooses."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, EntryCount, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="draft-model-bandit",
    title="Speculative sampling with a bandit over depths",
    summary="An ε-greedy bandit drafts as deep as has written most tokens a millisecond so far; one arm does not draft.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Hu et al., Taming the long-tail: efficient reasoning RL training with adaptive drafter (its ε-greedy bandit), 2025",
    reduces_to="plain where depth 0 is the only arm, draft-model where another one is",
    parent="draft-model",
    home="beside draft-model-goodput: what is learned without chances of single tokens",
    needs=(DRAFT,),
)
PUBLISHED = PublishedPreset(
    refused="the bandits of papers choose among settings of a whole server, by its clock"
)


def build(
    kit: Kit,
    *,
    depths: Annotated[
        tuple[int, ...],
        EntryCount(1, 16),
        InRange(0, 64),
        "the arms: tokens of a draft, ascending; 0 is not to draft",
    ] = (0, 1, 2, 4, 8),
    epsilon: Annotated[
        float, InRange(0, 1), "how often any arm is taken in place of the best one"
    ] = 0.1,
    window: Annotated[int, AtLeast(1), "rounds of each arm that are remembered"] = 16,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.epsilon_greedy import EpsilonGreedyPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # Rewards are tokens over the costs measured here: the same law on every machine, other drafts.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, ChainTree()),
        ExactVerifier(),
        EpsilonGreedyPolicy(kit.costs, depths, epsilon, window),
    )
