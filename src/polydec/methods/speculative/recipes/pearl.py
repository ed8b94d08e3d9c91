"""PEARL: parallel speculative decoding with adaptive draft length."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="pearl",
    title="PEARL: parallel speculative decoding",
    summary="Draft and target work at the same time: one goes on drafting while the other verifies what was drafted before.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Liu et al., PEARL: parallel speculative decoding with adaptive draft length, 2024 (published: gamma 3 to 5)",
    reduces_to="plain where nothing is accepted",
    parent="draft-model",
    home="two devices, or two halves of one, that run draft and target at the same time",
    needs=(DRAFT,),
    aliases=("parallel speculative decoding",),
    arxiv="2408.11850",
    published="up to 3.79 times plain decoding, 1.52 times serial speculation",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    gamma: Annotated[
        int,
        InRange(1, 64),
        "tokens drafted a round; best about the ratio of the two models' pass times",
    ] = 4,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.loop.pearl import PearlDecoder
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # A loop of its own: the draft model and the target work at the same time.
    return PearlDecoder(kit.target, kit.drafting, ExactVerifier(), gamma)
