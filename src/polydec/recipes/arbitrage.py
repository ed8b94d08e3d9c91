"""Arbitrage."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, Note, Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.card import Card
from polydec.methods.kit import DRAFT, Kit, Trained

CARD = Card(
    name="arbitrage",
    title="Arbitrage",
    summary="The draft model writes whole steps; where a router expects the target to write a better one, it does.",
    kind="routing",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Arbitrage: Efficient reasoning via advantage-aware speculation, 2025",
    reduces_to="plain of the target at tau 0, of the draft at tau 2",
    parent="entropy-adaptive",
    home="problems in steps, most of which a small model solves as well",
    needs=(DRAFT, Trained("router")),
    needs_training=True,
    aliases=("advantage-aware-speculation",),
    published="up to about 2 times lower latency than speculation by steps, at the same accuracy (MATH500, "
    "OlympiadBench)",
)


def build(
    kit: Kit,
    *,
    tau: Annotated[
        float,
        Within(0.0, 2.0),
        "chance of a better step from which the target writes it, above 1: never",
    ] = 0.5,
    delimiter: Annotated[str, Note("\\n: a line break"), "what a step ends with"] = "\\n",
    longest: Annotated[int, AtLeast(1), "tokens of a step at most"] = 64,
) -> Decoder:
    from polydec.drafters.nothing import Nothing
    from polydec.families.ar.speculative import Speculative
    from polydec.families.search.arbiters import ByRouter
    from polydec.families.search.arbitrage import Arbitrage
    from polydec.learned.kinds.router import Router
    from polydec.policies.fixed import Fixed
    from polydec.verifiers.match import Match

    big, small = (
        Speculative(law, Nothing(), Match(), Fixed(0)) for law in (kit.target, kit.drafting)
    )
    return Arbitrage(
        big, small, ByRouter(kit.need(Router), tau), delimiter.replace("\\n", "\n"), longest
    )
