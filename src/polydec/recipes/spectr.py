"""Several independent sequences, verified by optimal transport."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.trees.sequences import Sequences
from polydec.verifiers.k_seq import KSeq

CARD = Card(
    name="spectr",
    title="SpecTr",
    summary="Several sequences are drawn independently, and those still there are tried at each node with one threshold.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Sun et al., SpecTr: fast speculative decoding via optimal transport, 2023",
    reduces_to="draft-model where count is 1",
    parent="draft-model", home="sampling at high temperature, where passes over several tokens cost little more than one",
    needs=("draft",),
    options={"count": "sequences drawn, 1 to 64", "depth": "tokens of a sequence, 0 to 64"},
)


def build(target: Target, *, draft: Target, count: int = 2, depth: int = 3) -> Speculative:
    return Speculative(target, FromModel(draft, Sequences(count)), KSeq(), Fixed(depth, min(count * depth, 1024)))
