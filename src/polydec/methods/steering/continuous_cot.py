"""Continuous chains of thought."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import OWN_PROMPT, STATES, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="continuous-cot",
    title="Continuous chains of thought (Coconut)",
    summary="Before the prompt's last token the model reads its own last state, some times over, in place of written steps.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Hao et al., Training large language models to reason in a continuous latent space, 2024; Zhu et al., Reasoning by "
    "superposition: a theoretical perspective on chain of continuous thought, 2025",
    reduces_to="no steering at 0 thoughts",
    home="a model that was trained for it (`polydec train context`), on questions that take several steps",
    needs=(STATES, OWN_PROMPT),
    aliases=("coconut", "latent thoughts", "chain of continuous thought"),
    arxiv="2412.06769",
    published="graphs of three to four steps: near 100 % with two layers, where written steps come to about 75 %",
)
PUBLISHED = PublishedPreset(
    unknown="as many thoughts are fed back as a model was trained for, up to four there"
)

POSITIONS = itemgetter("thoughts")
"""How many positions of the context they take."""


def build(
    kit: Kit,
    *,
    thoughts: Annotated[
        int,
        InRange(0, 256),
        ValueNote("as many as it was trained for"),
        "vectors that are fed back",
    ] = 3,
) -> Target:
    from polydec.laws.targets.continuous_thoughts import ContinuousThoughtMaker
    from polydec.laws.targets.thinking import LatentPrefixTarget

    # The model makes the vectors itself: its last state is fed back as the next input.
    return LatentPrefixTarget(
        kit.target, kit.prompt, ContinuousThoughtMaker(thoughts, kit.target.vocab.size)
    )
