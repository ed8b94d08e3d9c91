"""Jacobi decoding."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.jacobi import Jacobi
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="jacobi",
    title="Jacobi decoding",
    summary="Guesses a block of tokens at once and lets every pass correct all of them.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Santilli et al., Accelerating transformer inference for translation via parallel decoding, 2023",
    reduces_to="plain where no guess comes true",
    parent="plain", home="text whose next tokens hardly depend on each other; rarely more than a few per cent alone",
    options={"block": "tokens guessed, 1 to 64"},
)


def build(target: Target, *, draft: Target | None = None, block: int = 4) -> Speculative:
    return Speculative(target, Jacobi(block), Match(), Fixed(block))
