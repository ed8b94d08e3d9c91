"""Generalised aggressive decoding: a block drafter fills gaps after the text."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="generalised-aggressive-decoding",
    title="Generalised aggressive decoding",
    summary="A network trained for it fills a block of gaps behind the text in one pass; the model keeps what it agrees with.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Ge, Xia, Sun, Chen, Wei, Lossless acceleration for seq2seq generation with aggressive decoding, 2022 "
    "(the generalised form)",
    reduces_to="plain where nothing is accepted",
    parent="plain",
    home="text that is made of a source: repair, translation, summaries",
    needs=(ArtefactNeed("block-drafter"),),
    needs_training=True,
    aliases=("gad", "generalized aggressive decoding", "speculative decoding for seq2seq"),
    published="3 to 5 times on WMT14 English-German, WMT16 English-Romanian and summarisation, at equal quality",
)
PUBLISHED = PublishedPreset(
    {
        "block": PublishedValue(
            25, "blocks of 25 gaps; ours has as many as the drafter was trained for"
        ),
    }
)


def build(
    kit: Kit,
    *,
    block: Annotated[
        int | None, InRange(1, 64), "gaps of a pass, none: as trained (published: 25)"
    ] = None,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.block_filled import BlockFilledDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.block_drafter import BlockDrafter

    # The block has the length of training unless an option says otherwise.
    trained = kit.needed_artefact(BlockDrafter)
    drafter = BlockFilledDrafter(trained, kit.source, block)
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(block or trained.block)
    )
