"""Iterative agent decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="iterative-agent-decoding",
    title="Iterative agent decoding",
    summary="Draws answers, shows the model the one that a learned reward values most, and draws again, round after round.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Chakraborty et al., Review, refine, repeat: understanding iterative decoding of AI agents with dynamic evaluation "
    "and selection, 2025",
    reduces_to="best-of-n at one round",
    parent="best-of-n",
    home="models that can mend an answer which they are shown, and a reward that knows a good one",
    needs=(ArtefactNeed("prm", instead="reward"),),
    needs_training=True,
    aliases=("iad", "review-refine-repeat"),
    arxiv="2504.01931",
    published="3 to 6 points over best of n on Sketch2Code and Text2SQL, 8 to 10 on WebShop, at the same "
    "number of calls",
)

PUBLISHED = PublishedPreset(
    {
        "feedback": PublishedValue(
            "\\nThis answer scores {score}. A better answer:\\n",
            "the best answer is shown with what the verifier says of it; ours is shown without a word",
        ),
        "contrast": PublishedValue(
            "\\nThis answer scores {score}. An answer that scores more:\\n",
            "the worst answer is shown beside the best one; ours is not shown",
        ),
        "critique": PublishedValue(
            "\\nWhat is wrong with this answer:",
            "a critique in words is shown as well; ours asks for none",
        ),
    },
    unknown="the wording of its prompts, the number of rounds and of answers in a round could not be read, and are ours",
)


def build(
    kit: Kit,
    *,
    rounds: Annotated[int, InRange(1, 64), "rounds, the first one included"] = 4,
    tries: Annotated[int, InRange(1, 64), "answers that are drawn in a round"] = 2,
    feedback: Annotated[
        str,
        ValueNote("\\n: a line break; {score}: what the reward says; none: nothing"),
        "what stands behind the answer that is shown",
    ] = "",
    enough: Annotated[
        float, InRange(0.0, 1.0), "no further round where the reward says so much"
    ] = 1.0,
    patience: Annotated[int, AtLeast(1), "rounds in vain before another answer is shown"] = 2,
    contrast: Annotated[
        str,
        ValueNote("\\n: a line break; {score}: what the reward says; none: the worst is not shown"),
        "what stands behind the worst answer, which is shown before the best",
    ] = "",
    critique: Annotated[
        str,
        ValueNote("\\n: a line break; none: it is not asked"),
        "what the model is asked about the answer that is shown; a line of what it says is shown too",
    ] = "",
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.judging import AttemptTextJudge
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.methods.search.loop.refine import IterativeRefinementSearch
    from polydec.models.learned.kinds.reward import TextReward
    from polydec.models.learned.kinds.step_reward import StepReward

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to refine.
    method = undrafted_method(drop_greedy_rule(kit.target))
    feedback_text, worst, asked = (
        text.replace("\\n", "\n") for text in (feedback, contrast, critique)
    )
    # A reward of texts goes before one of states where both are given.
    judge = kit.find_artefact(TextReward)
    text = None if judge is None else AttemptTextJudge(judge.text_chance, kit.target.vocab.words)
    return IterativeRefinementSearch(
        method,
        kit.find_artefact(StepReward) if text is None else None,
        rounds,
        tries,
        feedback_text,
        enough,
        patience,
        kit.context,
        worst,
        asked,
        text,
    )
