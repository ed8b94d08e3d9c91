"""Differentiable cache augmentation."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated

from polydec.base.options import InRange
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import OWN_PROMPT, STATES, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="cache-augmentation",
    title="Differentiable cache augmentation",
    summary="A second network reads the model's cache of the prompt and makes vectors that the model reads before the "
    "prompt's last token.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Liu et al., Deliberation in latent space via differentiable cache augmentation, 2024",
    reduces_to="no steering at 0 latents",
    home="a model with a coprocessor that was trained for it (`polydec train context --kind cache-augmentation`)",
    needs=(STATES, OWN_PROMPT, ArtefactNeed("coprocessor")),
    aliases=("coprocessor", "kv-cache coprocessor"),
    arxiv="2412.17747",
    published="Gemma-2 2B, 64 latents: 10.05 points more on GSM8K, 4.70 on MMLU",
)
PUBLISHED = PublishedPreset(
    unknown="how many vectors are read is a matter of the training: 4 to 64 there, the most bring "
    "most, and how often they are made again (`every`) is not said"
)


POSITIONS = itemgetter("latents")
"""How many positions of the context they take before an answer, at most."""

RECURRING = itemgetter("latents", "every")
"""How many they take again behind each so many tokens of the answer; 0 tokens: never."""


def build(
    kit: Kit,
    *,
    latents: Annotated[
        int, InRange(0, 64), "vectors that are read, at most as many as it was trained for"
    ] = 8,
    every: Annotated[
        int,
        InRange(0, 65536),
        "tokens of the answer behind which the cache is read again, for as many further vectors; 0: it is read once",
    ] = 0,
    late: Annotated[
        int,
        InRange(0, 65535),
        "tokens that are written while vectors are made, beside one another with --workers 2; 0: the answer waits for them",
    ] = 0,
) -> Target:
    from polydec.laws.targets.augmented import CacheAugmentationMaker
    from polydec.laws.targets.recurring_thoughts import recurring_target
    from polydec.models.learned.kinds.coprocessor import CacheCoprocessor

    made = kit.needed_artefact(CacheCoprocessor)
    # The coprocessor has a trained vector for each latent: more of them it cannot make.
    count = min(latents, len(made.soft_LH))
    maker = CacheAugmentationMaker(made, made.skeleton.layers, kit.target.vocab.size, count, late)
    return recurring_target(kit.target, kit.prompt, maker, every)
