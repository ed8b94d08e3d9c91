"""A vote that a reward weighs."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.search.recipes._options import AnswerMark, TextCount

CARD = Card(
    name="weighted-voting",
    title="Weighted voting",
    summary="Draws several texts and answers with what most of them say; a vote weighs what a learned reward says of its text.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Li et al., Making language models better reasoners with step-aware verifier, 2022",
    reduces_to="self-consistency where the reward says the same of every text",
    parent="self-consistency",
    home="problems with short answers, and a reward that is right more often than not",
    needs=(ArtefactNeed("prm"),),
    needs_training=True,
    aliases=("weighted-best-of-n", "step-aware-verifier"),
    arxiv="2206.02336",
)
PUBLISHED = PublishedPreset(
    {
        "tries": PublishedValue(
            100, "100 texts, 20 behind each of five prompts; ours are 8 behind one"
        ),
    },
    unknown="its five prompts are not built: all texts have yours",
)


def build(
    kit: Kit,
    *,
    tries: TextCount = 8,
    mark: AnswerMark = "",
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.methods.search.loop.rollouts import RolloutSearch
    from polydec.methods.search.loop.vote import MajorityVotePicker
    from polydec.models.learned.kinds.step_reward import StepReward

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to vote on.
    method = undrafted_method(drop_greedy_rule(kit.target))
    # The vote waits for all texts; the reward is asked once of each.
    return RolloutSearch(
        method, MajorityVotePicker(mark), tries, tries, kit.needed_artefact(StepReward)
    )
