"""Iterative agent decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, Note, Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit, Trained

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
    needs=(Trained("prm", instead="reward"),),
    needs_training=True,
    aliases=("iad", "review-refine-repeat"),
    arxiv="2504.01931",
    published="3 to 6 points over best of n on Sketch2Code and Text2SQL, 8 to 10 on WebShop, at the same "
    "number of calls",
)


def build(
    kit: Kit,
    *,
    rounds: Annotated[int, Within(1, 64), "rounds, the first one included"] = 4,
    tries: Annotated[int, Within(1, 64), "answers that are drawn in a round"] = 2,
    feedback: Annotated[
        str,
        Note("\\n: a line break; {score}: what the reward says; none: nothing"),
        "what stands behind the answer that is shown",
    ] = "",
    enough: Annotated[
        float, Within(0.0, 1.0), "no further round where the reward says so much"
    ] = 1.0,
    patience: Annotated[int, AtLeast(1), "rounds in vain before another answer is shown"] = 2,
    contrast: Annotated[
        str,
        Note("\\n: a line break; {score}: what the reward says; none: the worst is not shown"),
        "what stands behind the worst answer, which is shown before the best",
    ] = "",
    critique: Annotated[
        str,
        Note("\\n: a line break; none: it is not asked"),
        "what the model is asked about the answer that is shown; a line of what it says is shown too",
    ] = "",
) -> Decoder:
    from polydec.laws.targets.searched import searched
    from polydec.methods.search.loop.judging import ByText
    from polydec.methods.search.loop.refine import Refine
    from polydec.methods.speculative.drafters.nothing import Nothing
    from polydec.methods.speculative.loop.speculative import Speculative
    from polydec.methods.speculative.policies.fixed import Fixed
    from polydec.methods.speculative.verifiers.match import Match
    from polydec.models.learned.kinds.reward import TextReward
    from polydec.models.learned.kinds.step_reward import StepReward

    method = Speculative(searched(kit.target), Nothing(), Match(), Fixed(0))
    feedback_text, worst, asked = (
        text.replace("\\n", "\n") for text in (feedback, contrast, critique)
    )
    judge = kit.find(TextReward)
    text = None if judge is None else ByText(judge.chance, kit.target.vocab.words)
    return Refine(
        method,
        kit.find(StepReward) if text is None else None,
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
