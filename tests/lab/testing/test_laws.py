"""The output law of every composition, enumerated, is the target's."""

import pytest

from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.examples import SHAPERS
from polydec.methods.speculative.drafters.lookup import Lookup
from polydec.methods.speculative.drafters.model import FromModel
from polydec.methods.speculative.drafters.nothing import Nothing
from polydec.methods.speculative.drafters.recycling import Recycling
from polydec.methods.speculative.loop.speculative import Speculative
from polydec.methods.speculative.policies.fixed import Fixed
from polydec.methods.speculative.trees.chain import Chain
from polydec.methods.speculative.trees.coupled_chain import CoupledChain
from polydec.methods.speculative.trees.coupled_static import CoupledStatic
from polydec.methods.speculative.trees.static import Static
from polydec.methods.speculative.verifiers.coupled import Coupled
from polydec.methods.speculative.verifiers.exact import Exact
from polydec.methods.speculative.verifiers.match import Match

DRAFTERS = {
    "none": (lambda d: Nothing(), Fixed(0)),
    "chain": (lambda d: FromModel(d, Chain()), Fixed(2)),
    "independent tree": (lambda d: FromModel(d, Static((2, 1), replace=True)), Fixed(2, 4)),
    "tree without replacement": (lambda d: FromModel(d, Static((2, 1))), Fixed(2, 4)),
    "lookup": (lambda d: Lookup(), Fixed(3)),
    "recycling": (lambda d: Recycling(k=2, nodes=6), Fixed(3, 6)),
    "coupled chain": (lambda d: FromModel(d, CoupledChain()), Fixed(2)),
    "coupled tree": (lambda d: FromModel(d, CoupledStatic((2, 1))), Fixed(2, 4)),
}
VERIFIERS = {"match": Match(), "exact": Exact(), "coupled": Coupled()}
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
        lambda t, d: Speculative(t, make(d), VERIFIERS[verifier], policy),
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
