"""Hidden chains of thought."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated

from polydec.base.options import InRange
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, OWN_PROMPT, STATES, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="hidden-cot",
    title="Hidden chain of thought (HCoT)",
    summary="Before the prompt's last token the model reads one vector that a second model makes of the prompt, in place of "
    "the steps that it would write; and again wherever it writes the mark of a thought.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Liu et al., Expediting and elevating large language model reasoning via hidden chain-of-thought decoding, 2024",
    reduces_to="no steering at 0 thoughts",
    home="two models trained for it (`polydec train context --kind hidden-cot`), and steps that nobody reads",
    needs=(STATES, DRAFT, OWN_PROMPT, ArtefactNeed("thought")),
    aliases=("hcot", "hidden chain-of-thought"),
    arxiv="2409.08561",
    published="1.5 to 3.8 times as fast as written steps, at competitive accuracy (GSM8K, MATH, ScienceQA, HotpotQA)",
)
PUBLISHED = PublishedPreset(
    unknown="how a vector is made of a state is not said: by a linear map and a layer norm here"
)


POSITIONS = itemgetter("thoughts")
"""How many positions of the context it takes."""


def build(
    kit: Kit,
    *,
    thoughts: Annotated[int, InRange(0, 1), "1: the vector is read; 0: it is left out"] = 1,
    within: Annotated[
        bool, "a mark of a thought that the model writes is read as a further vector"
    ] = True,
) -> Target:
    from polydec.laws.targets.hidden_thought import HiddenThoughtMaker
    from polydec.laws.targets.marked_thoughts import marked_target
    from polydec.laws.targets.thinking import LatentPrefixTarget
    from polydec.models.learned.kinds.thought import ThoughtProjection

    # The draft model reads the prompt; the projection makes one vector of its last state.
    thought = kit.needed_artefact(ThoughtProjection)
    thinker = HiddenThoughtMaker(kit.drafting, thought, kit.target.vocab.size, thoughts)
    law = LatentPrefixTarget(kit.target, kit.prompt, thinker)
    return marked_target(law, kit.prompt, thinker, thought.mark, read=within and thoughts > 0)
