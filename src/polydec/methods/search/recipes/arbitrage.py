"""Arbitrage."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, Note, Within
from polydec.core.decoder import Decoder
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit, Trained

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
    needs=(DRAFT, Trained("router", "a router", instead="text-router")),
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
    from polydec.methods.search.loop.arbiters import ByReading, ByRouter
    from polydec.methods.search.loop.arbitrage import Arbitrage, Reader
    from polydec.methods.speculative.drafters.nothing import Nothing
    from polydec.methods.speculative.loop.speculative import Speculative
    from polydec.methods.speculative.policies.fixed import Fixed
    from polydec.methods.speculative.verifiers.match import Match
    from polydec.models.learned.kinds.router import Router
    from polydec.models.learned.kinds.text_router import TextRouter

    def plain(law: Target) -> Speculative:
        return Speculative(law, Nothing(), Match(), Fixed(0))

    ends, reads = delimiter.replace("\\n", "\n"), kit.find(TextRouter)
    arbiter = ByRouter(kit.need(Router), tau) if reads is None else ByReading(reads, tau)
    reader = None if reads is None else Reader(plain(reads.law), *reads.marks, reads.law.context)
    return Arbitrage(plain(kit.target), plain(kit.drafting), arbiter, ends, longest, reader)
