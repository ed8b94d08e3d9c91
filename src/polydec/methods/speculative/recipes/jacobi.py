"""Jacobi decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="jacobi",
    title="Jacobi decoding",
    summary="Guesses a block of tokens at once and lets every pass correct all of them.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Santilli et al., Accelerating transformer inference for translation via parallel decoding, 2023",
    reduces_to="plain where no guess comes true",
    parent="plain",
    home="text whose next tokens hardly depend on each other; rarely more than a few per cent alone",
    aliases=("parallel-jacobi",),
    arxiv="2305.10427",
)
PUBLISHED = PublishedPreset(
    unknown="it iterates over a whole sentence or blocks of it, whose best length is found by trying; "
    "guesses begin with padding, ours with what stands in the text"
)


def build(kit: Kit, *, block: Annotated[int, InRange(1, 64), "tokens guessed"] = 4) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.jacobi import JacobiDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # Guesses are certain, so the target's own draws decide.
    return SpeculativeDecoder(kit.target, JacobiDrafter(block), MatchVerifier(), FixedPolicy(block))
