"""Best of n."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit

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


def build(
    kit: Kit,
    *,
    tries: Annotated[int, Within(1, 256), "texts that are drawn side by side"] = 8,
) -> Decoder:
    from polydec.laws.targets.searched import searched
    from polydec.methods.search.loop.best_of import BestOf
    from polydec.methods.search.loop.rollouts import Rollouts
    from polydec.methods.speculative.drafters.nothing import Nothing
    from polydec.methods.speculative.loop.speculative import Speculative
    from polydec.methods.speculative.policies.fixed import Fixed
    from polydec.methods.speculative.verifiers.match import Match
    from polydec.models.learned.kinds.step_reward import StepReward

    method = Speculative(searched(kit.target), Nothing(), Match(), Fixed(0))
    return Rollouts(method, BestOf(), tries, tries, kit.find(StepReward))
