"""Best of n."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.search.recipes._options import TextCount

CARD = Card(
    name="best-of-n",
    title="Best of n",
    summary="Draws several texts and answers with the one that a learned reward values most, or else the likeliest.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Stiennon et al., Learning to summarize from human feedback, 2020; Cobbe et al., Training verifiers to solve math "
    "word problems, 2021",
    reduces_to="plain at one try",
    parent="plain",
    home="problems where right answers are easier to tell than to find; --with a reward",
    aliases=("bon", "rejection-sampling", "reranking"),
    arxiv="2110.14168",
)
PUBLISHED = PublishedPreset(
    {
        "tries": PublishedValue(
            100,
            "a verifier chooses among 100 solutions; ours are 8, as each takes its time on a CPU",
        ),
    }
)


def build(
    kit: Kit,
    *,
    tries: TextCount = 8,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.best_of import BestOfPicker
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.methods.search.loop.rollouts import RolloutSearch
    from polydec.models.learned.kinds.step_reward import StepReward

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to choose from.
    method = undrafted_method(drop_greedy_rule(kit.target))
    # Without a reward the mean log-probability decides.
    return RolloutSearch(method, BestOfPicker(), tries, tries, kit.find_artefact(StepReward))
