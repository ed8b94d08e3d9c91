"""STAMP: text as always, and each mask that it asks for in one pass over a token for each patch."""

from __future__ import annotations

from typing import Annotated

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="stamp",
    title="STAMP (all-mask prediction)",
    summary="Behind each token of a text that asks for a mask, one pass says which patches of the image are in it.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="STAMP: tackling the trilemma in MLLM-based segmentation with simultaneous textual mask prediction, 2025",
    reduces_to="plain where no token asks for a mask, and its text everywhere",
    parent="plain",
    home="a vision-language model of `polydec train stamp`",
    needs=(ArtefactNeed("mask-head"),),
    needs_training=True,
    shows_masks=True,
    aliases=("all-mask-prediction", "segmentation"),
    unexercised=dict.fromkeys(
        ("drafted", "accepted", "rejected"), "the text is written token by token"
    ),
)
PUBLISHED = PublishedPreset({})


def build(
    kit: Kit,
    *,
    causal: Annotated[bool, "a patch's token sees none behind it (to compare)"] = False,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.nothing import NothingDrafter
    from polydec.methods.speculative.loop.mask_reading import MaskReading
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.mask_head import MaskHead

    reading = MaskReading(kit.needed_artefact(MaskHead), causal)
    return SpeculativeDecoder(
        kit.target, NothingDrafter(), MatchVerifier(), FixedPolicy(0), reading=reading
    )
