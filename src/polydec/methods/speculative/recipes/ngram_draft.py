"""Drafts of an n-gram table."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import Formerly, Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit, Trained

CARD = Card(
    name="ngram-draft",
    title="N-gram draft",
    summary="Drafts what followed the last few tokens in text that the target wrote before; a look costs no pass.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Leviathan et al., speculative decoding (bigram drafts), 2023; Ou et al., adaptive n-gram decoding, 2024",
    reduces_to="plain with a table that knows nothing of the text",
    parent="plain",
    home="answers of the kinds that the table was counted in",
    needs=(Trained("ngrams"),),
    aliases=("ngrams", "n-gram"),
)


def build(
    kit: Kit,
    *,
    floor: Annotated[
        float, Within(0, 1), "go on while the whole draft is right with at least this chance"
    ] = 0.1,
    width: Annotated[int, Within(1, 16), "most alternatives after a context"] = 2,
    depth: Annotated[int, Within(0, 64), "most tokens in a row"] = 8,
    nodes: Annotated[int, Within(0, 1024), "most tokens of a draft"] = 16,
    cost_aware: Annotated[
        bool, Formerly("thrift"), "feed only what is worth its rows by the costs measured here"
    ] = True,
) -> Decoder:
    from polydec.methods.speculative.drafters.backoff import Backoff
    from polydec.methods.speculative.drafters.cost_aware import CostAware
    from polydec.methods.speculative.loop.speculative import Speculative
    from polydec.methods.speculative.policies.fixed import Fixed
    from polydec.methods.speculative.verifiers.match import Match
    from polydec.models.learned.kinds.ngrams import NGrams

    drafter = Backoff(kit.need(NGrams), floor, width)
    return Speculative(
        kit.target,
        CostAware(drafter, None, kit.costs) if cost_aware else drafter,
        Match(),
        Fixed(depth, nodes),
    )
