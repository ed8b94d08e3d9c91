"""The output law of every composition, enumerated, is the target's."""

import pytest

from polydec.drafters.lookup import Lookup
from polydec.drafters.model import FromModel
from polydec.drafters.nothing import Nothing
from polydec.drafters.recycling import Recycling
from polydec.families.ar.speculative import Speculative
from polydec.policies.fixed import Fixed
from polydec.testing.check_decoder import check_law
from polydec.testing.examples import SHAPERS
from polydec.trees.chain import Chain
from polydec.trees.coupled_chain import CoupledChain
from polydec.trees.coupled_static import CoupledStatic
from polydec.trees.static import Static
from polydec.verifiers.coupled import Coupled
from polydec.verifiers.exact import Exact
from polydec.verifiers.match import Match

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
