"""Arbitrage's oracle."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, Note, Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit, Trained

CARD = Card(
    name="arbitrage-oracle",
    title="Arbitrage's oracle",
    summary="Both models write every step, and what a learned reward values more stands: what a router may reach.",
    kind="routing",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Arbitrage: Efficient reasoning via advantage-aware speculation, 2025",
    reduces_to="plain of the target at tau -2, of the draft at tau 1",
    parent="arbitrage",
    home="measuring what a router could win; it saves nothing",
    needs=(DRAFT, Trained("prm")),
    needs_training=True,
    aliases=(),
)


def build(
    kit: Kit,
    *,
    tau: Annotated[
        float, Within(-2.0, 1.0), "advantage above which the target's step stands"
    ] = 0.0,
    delimiter: Annotated[str, Note("\\n: a line break"), "what a step ends with"] = "\\n",
    longest: Annotated[int, AtLeast(1), "tokens of a step at most"] = 64,
) -> Decoder:
    from polydec.methods.search.loop.arbiters import ByAdvantage
    from polydec.methods.search.loop.arbitrage import Arbitrage
    from polydec.methods.speculative.drafters.nothing import Nothing
    from polydec.methods.speculative.loop.speculative import Speculative
    from polydec.methods.speculative.policies.fixed import Fixed
    from polydec.methods.speculative.verifiers.match import Match
    from polydec.models.learned.kinds.step_reward import StepReward

    big, small = (
        Speculative(law, Nothing(), Match(), Fixed(0)) for law in (kit.target, kit.drafting)
    )
    return Arbitrage(
        big, small, ByAdvantage(kit.need(StepReward), tau), delimiter.replace("\\n", "\n"), longest
    )
