"""Self-consistency."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.search.recipes._options import AnswerMark, TextCount

CARD = Card(
    name="self-consistency",
    title="Self-consistency",
    summary="Draws several texts and answers with what most of them say.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Wang et al., Self-consistency improves chain of thought reasoning in language models, 2022 (published: 40 texts)",
    reduces_to="plain at one try",
    parent="plain",
    home="problems with short answers, such as a number behind some steps",
    aliases=("majority-vote", "majority-voting", "cot-sc"),
    arxiv="2203.11171",
)
PUBLISHED = PublishedPreset(
    {
        "tries": PublishedValue(40, "40 texts; ours draws 8"),
    }
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

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to vote on.
    method = undrafted_method(drop_greedy_rule(kit.target))
    # The vote waits for all texts: none is dropped.
    return RolloutSearch(method, MajorityVotePicker(mark), tries, tries)
