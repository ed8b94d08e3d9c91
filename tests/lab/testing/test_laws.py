"""The output law of every composition, enumerated, is the target's."""

import pytest

from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.examples import SHAPERS
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.coupled_chain import CoupledChainTree
from polydec.methods.speculative.trees.coupled_static import CoupledStaticTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.coupled import CoupledVerifier
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

DRAFTERS = {
    "none": (lambda d: NothingDrafter(), FixedPolicy(0)),
    "chain": (lambda d: ModelDrafter(d, ChainTree()), FixedPolicy(2)),
    "independent tree": (
        lambda d: ModelDrafter(d, StaticTree((2, 1), replace=True)),
        FixedPolicy(2, 4),
    ),
    "tree without replacement": (lambda d: ModelDrafter(d, StaticTree((2, 1))), FixedPolicy(2, 4)),
    "lookup": (lambda d: LookupDrafter(), FixedPolicy(3)),
    "recycling": (lambda d: RecyclingDrafter(k=2, nodes=6), FixedPolicy(3, 6)),
    "coupled chain": (lambda d: ModelDrafter(d, CoupledChainTree()), FixedPolicy(2)),
    "coupled tree": (lambda d: ModelDrafter(d, CoupledStaticTree((2, 1))), FixedPolicy(2, 4)),
}
VERIFIERS = {"match": MatchVerifier(), "exact": ExactVerifier(), "coupled": CoupledVerifier()}
CELLS = [
    (s, d, v)
    for s in SHAPERS
    for d in DRAFTERS
    for v in VERIFIERS
    if not d.startswith("coupled") or v == "coupled"
]

PLAIN = ("chain", "tree without replacement", "coupled tree")
"""Drafters whose cells are enumerated without shapers too: a plain law is a shaped one whose shapers do nothing."""


SILENT = dict.fromkeys(("drafted", "accepted", "rejected"), "its drafter proposes nothing")


def law(shaping, drafter, verifier, laws, length):
    make, policy = DRAFTERS[drafter]
    return check_law(
        lambda t, d: SpeculativeDecoder(t, make(d), VERIFIERS[verifier], policy),
        laws=laws,
        length=length,
        shapings=[shaping],
        unexercised=SILENT if drafter == "none" else {},
    )


@pytest.mark.parametrize(
    "shaping, drafter, verifier", [c for c in CELLS if c[0] == "shaped" or c[1] in PLAIN]
)
def test_two_tokens(record_counts, shaping, drafter, verifier):
    record_counts(law(shaping, drafter, verifier, 8, 2))


@pytest.mark.parametrize(
    "shaping, drafter, verifier",
    [
        ("shaped", "chain", "exact"),
        ("shaped", "lookup", "match"),
        ("plain", "coupled chain", "coupled"),
        ("plain", "tree without replacement", "exact"),
    ],
)
def test_three_tokens(record_counts, shaping, drafter, verifier):
    """A few cells only: `-m slow` runs them all."""
    record_counts(law(shaping, drafter, verifier, 2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("shaping, drafter, verifier", CELLS)
def test_all_laws(record_counts, shaping, drafter, verifier):
    counts = law(
        shaping,
        drafter,
        verifier,
        4 if (drafter, verifier) == ("independent tree", "match") else 8,
        3,
    )
    record_counts(counts)
