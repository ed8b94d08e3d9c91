"""What loses is switched off within 32 tokens, tried again later, and the answer says how many passes had no draft."""

from types import SimpleNamespace

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.trained_tree import cost_aware_tree
from polydec.methods.speculative.loop.events import ProposedEvent
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.match import MatchVerifier

COSTS = PassCosts((4.0, 4.4, 4.8, 5.2, 5.6, 6.0), 0.5)
"""A row costs a tenth of a pass, so that a draft which is sometimes right would pay."""
SOON = 32
TOKENS = 320


def always_wrong(target):
    """A draft model that is sure of what the target finds least likely."""
    opposite = toy_law(77, 3, cost=0.1)
    opposite.network.weight = -8 * target.network.weight
    return opposite


def method_of(name):
    """A method of the command line, with a draft model that is never right."""

    def build(target, wrong):
        laws = (ShapedTarget(law, GreedyRule()) for law in (target, wrong))
        return registry.build(name, Kit(*laws, measure=lambda: COSTS))[0]

    return build


def asked_model(target, wrong):
    """The part of `auto` that asks a draft model, alone."""
    paid = ModelDrafter(ShapedTarget(wrong, GreedyRule()), ChainTree())
    drafter = CostAwareDrafter(NothingDrafter(), paid, COSTS)
    return SpeculativeDecoder(
        ShapedTarget(target, GreedyRule()), drafter, MatchVerifier(), FixedPolicy(12, 32)
    )


def trained_tree(target, wrong):
    """What eagle-3 and its kin are by default."""
    trained = SimpleNamespace(rates=((0.6,), (0.5,)), share=0.2)
    own = ModelDrafter(ShapedTarget(wrong, GreedyRule()), BestFirstTree(2))
    law = ShapedTarget(target, GreedyRule())
    return SpeculativeDecoder(
        law,
        cost_aware_tree(own, trained, Kit(law), COSTS),
        MatchVerifier(),
        FixedPolicy(5, 16),
    )


@pytest.mark.parametrize(
    "build",
    [
        asked_model,
        trained_tree,
        *map(method_of, ("draft-model-goodput", "draft-model-bandit")),
    ],
    ids=["asked model", "trained tree", "goodput", "bandit"],
)
def test_what_is_never_right_is_soon_left_alone_and_tried_again(build):
    target = toy_law(5, 3)
    decoder = build(target, always_wrong(target))
    sizes = []

    def on(event):
        if isinstance(event, ProposedEvent):
            sizes.append(len(event.token) - 1)

    request = Request((0, 1, 0, 1), max_tokens=TOKENS, ignore_eos=True)
    answer = run_coroutines([answer_one(decoder, request, on=on)])[0]
    plain = registry.build("plain", Kit(ShapedTarget(target, GreedyRule())))[0]
    assert answer.token_ids == run_coroutines([answer_one(plain, request)])[0].token_ids
    drafted = [at for at, size in enumerate(sizes) if size]
    assert drafted and drafted[0] < SOON, "it was tried"
    # Nothing is right, so each pass writes one token.
    later = [at for at in drafted if at >= SOON]
    assert len(sizes) == TOKENS and len(later) <= 0.12 * (TOKENS - SOON), sizes
    assert later, "it was never tried again"
    assert answer.stats.metrics()["passes_without_draft"] == TOKENS - len(drafted)
