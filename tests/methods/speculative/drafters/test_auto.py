"""What `auto` weighs, by what passes cost."""

import pytest

from polydec.lab.testing.toy import toy_law
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
from polydec.methods.speculative.drafters.merged_tree import MergedTreeDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.recipes import auto

SHORT = (3.6, 3.8, 4.2, 4.6)
LONG = tuple(5 * t for t in SHORT)
DEAR = (3.6, 4.4, 5.9, 7.4)


def weighed(costs: PassCosts, **options) -> CostAwareDrafter:
    drafter = auto.build(Kit(toy_law(1), toy_law(2), measure=lambda: costs), **options).drafter
    assert isinstance(drafter, CostAwareDrafter)
    return drafter


@pytest.mark.parametrize(
    ("rows", "draft_ms", "notes", "asks"),
    [
        (SHORT, 0.2, False, True),  # a short pass: Token Recycling takes more than it brings
        (SHORT, 0.7, False, False),  # a draft's token is too dear for how often it is right
        (LONG, 0.7, True, True),
        (LONG, 4.0, True, False),
        (DEAR, 0.0, False, False),
    ],
)
def test_what_costs_let_it_weigh(rows, draft_ms, notes, asks):
    drafter = weighed(PassCosts(rows, draft_ms))
    assert isinstance(drafter.free, MergedTreeDrafter if notes else SuffixDrafter)
    assert (drafter.paid is not None) == asks


def test_options_say_otherwise():
    drafter = weighed(PassCosts(DEAR, 5.0), wide=True, ask=True)
    assert isinstance(drafter.free, MergedTreeDrafter) and drafter.paid is not None
    drafter = weighed(PassCosts(LONG, 0.0), wide=False, ask=False)
    assert isinstance(drafter.free, SuffixDrafter) and drafter.paid is None
