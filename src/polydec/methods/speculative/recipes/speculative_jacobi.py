"""Speculative Jacobi decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="speculative-jacobi",
    title="Speculative Jacobi decoding",
    summary="Draws a window of tokens at once and tests each of them in the next pass.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Teng et al., Accelerating auto-regressive text-to-image generation with training-free speculative Jacobi "
    "decoding, 2024",
    reduces_to="jacobi where every row is certain (temperature 0)",
    parent="jacobi",
    home="pictures as tokens, drawn at a temperature",
    aliases=("sjd",),
    arxiv="2410.01699",
    published="about 2 times fewer passes on Lumina-mGPT, Anole and Emu3",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    window: Annotated[int, InRange(1, 64), "places drawn at once"] = 16,
    back: Annotated[
        int,
        AtLeast(0),
        "a place that no pass has seen copies the token so far before it (1: on its left, a row's length: above it; 0: it is "
        "drawn uniformly)",
    ] = 1,
    begin: Annotated[
        int | None,
        AtLeast(0),
        ValueNote("none: all of the answer is a picture"),
        "token id behind which a picture stands in a text; elsewhere nothing is drawn ahead",
    ] = None,
    end: Annotated[
        int | None,
        AtLeast(0),
        ValueNote("none: it ends with the answer"),
        "token id with which it ends",
    ] = None,
    drawn: Annotated[bool, "it draws from the row of that place, where a pass has seen it"] = False,
) -> Decoder:
    from polydec.methods.speculative.drafters.speculative_jacobi import SpeculativeJacobiDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # Each drawn token is tested against the row that it was drawn from.
    drafter = SpeculativeJacobiDrafter(window, back, drawn, begin, end, kit.rows)
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(window))
