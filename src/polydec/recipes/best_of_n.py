"""Best of n."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.card import Card
from polydec.methods.kit import Kit

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
    from polydec.drafters.nothing import Nothing
    from polydec.families.ar.speculative import Speculative
    from polydec.families.search.best_of import BestOf
    from polydec.families.search.rollouts import Rollouts
    from polydec.learned.kinds.step_reward import StepReward
    from polydec.policies.fixed import Fixed
    from polydec.targets.searched import searched
    from polydec.verifiers.match import Match

    method = Speculative(searched(kit.target), Nothing(), Match(), Fixed(0))
    return Rollouts(method, BestOf(), tries, tries, kit.find(StepReward))
