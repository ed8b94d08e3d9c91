"""Drafts of an n-gram table."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import DeprecatedName, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

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
    needs=(ArtefactNeed("ngrams"),),
    aliases=("ngrams", "n-gram"),
)
PUBLISHED = PublishedPreset(
    refused="it is put together of two papers: bigrams that are drawn, and a table that grows while a "
    "text is written"
)


def build(
    kit: Kit,
    *,
    floor: Annotated[
        float, InRange(0, 1), "go on while the whole draft is right with at least this chance"
    ] = 0.1,
    width: Annotated[int, InRange(1, 16), "most alternatives after a context"] = 2,
    depth: Annotated[int, InRange(0, 64), "most tokens in a row"] = 8,
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a draft"] = 16,
    cost_aware: Annotated[
        bool,
        DeprecatedName("thrift"),
        "feed only what is worth its rows by the costs measured here",
    ] = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.backoff import BackoffDrafter
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.ngrams import NGrams

    drafter = BackoffDrafter(kit.needed_artefact(NGrams), floor, width)
    # The table's candidates are certain, so the target's own draws decide.
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(depth, nodes),
    )
