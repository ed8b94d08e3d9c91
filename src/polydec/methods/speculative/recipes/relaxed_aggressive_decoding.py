"""Generalised aggressive decoding with relaxed verification: nearly best tokens pass."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="relaxed-aggressive-decoding",
    title="Relaxed aggressive decoding",
    summary="A block drafter's tokens are kept where they stand among the model's likeliest ones, near the first.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Ge, Xia, Sun, Chen, Wei, Lossless acceleration for seq2seq generation with aggressive decoding, 2022 "
    "(the generalised form, relaxed)",
    reduces_to="generalised-aggressive-decoding at top 1 for greedy text, and where a request has a constraint",
    parent="generalised-aggressive-decoding",
    home="text that may be put in several ways: translation, summaries",
    needs=(ArtefactNeed("block-drafter"),),
    needs_training=True,
    aliases=("gad++", "gad-plus-plus"),
    published="faster than the strict form at equal quality on WMT14 English-German and WMT16 English-Romanian",
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
    top: Annotated[int, AtLeast(1), "of the model's likeliest tokens so many may stand"] = 5,
    tolerance: Annotated[
        float, AtLeast(0), "how far below the likeliest, in nats of log-probability"
    ] = 3.0,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.block_filled import BlockFilledDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.methods.speculative.verifiers.near_best import NearBestVerifier
    from polydec.models.learned.kinds.block_drafter import BlockDrafter

    trained = kit.needed_artefact(BlockDrafter)
    drafter = BlockFilledDrafter(trained, kit.source, block, True)
    # The relaxed rule looks at the model's own rows, which know nothing of a constraint: under one,
    # tokens are verified exactly.
    verifier = NearBestVerifier(top, tolerance) if kit.language is None else MatchVerifier()
    return SpeculativeDecoder(kit.target, drafter, verifier, FixedPolicy(block or trained.block))
