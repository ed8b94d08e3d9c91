"""PEARL: parallel speculative decoding with adaptive draft length."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.loops.pearl import Pearl
from polydec.verifiers.exact import Exact

CARD = Card(
    name="pearl",
    title="PEARL: parallel speculative decoding",
    summary="Draft and target work at the same time: one goes on drafting while the other verifies what was drafted before.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Liu et al., PEARL: parallel speculative decoding with adaptive draft length, 2024 (published: gamma 3 to 5)",
    reduces_to="plain where nothing is accepted",
    parent="draft-model", home="two devices, or two halves of one, that run draft and target at the same time",
    needs=("draft",),
    options={"gamma": "tokens drafted a round, 1 to 64; best about the ratio of the two models' pass times"},
)


def build(target: Target, *, draft: Target, gamma: int = 4) -> Pearl:
    return Pearl(target, draft, Exact(), gamma)
