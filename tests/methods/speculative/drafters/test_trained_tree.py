"""Trees of trained drafters by recorded costs: as many nodes as pay, none where none does, and by one rule in every recipe."""

from types import SimpleNamespace

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.examples import example_artefacts
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.priced import PricedDrafter
from polydec.methods.speculative.drafters.trained_tree import cost_aware_proposal, cost_aware_tree
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.verifiers.match import MatchVerifier

RECORDED = {
    "rows cost nothing": PassCosts((1.0, 1.0), 0.0),
    "a GPU": PassCosts(tuple(20.0 + 0.05 * m for m in range(64)), 1.0),
    "a Xeon with AMX": PassCosts((9.23, 9.25, 9.68, 10.99, 12.07, 13.39, 14.3, 15.28), 1.3),
    "a Zen 1": PassCosts(tuple(14.0 + 9.0 * m for m in range(64)), 5.0),
    "a row costs two passes": PassCosts((1.0, 3.0), 0.1),
}
"""From cheap rows to dear ones."""
TREES = {
    *("chimera", "clover", "eagle", "eagle-2", "eagle-3", "falcon", "flash"),
    *("hydra", "hydra-plus-plus", "longspec", "medusa", "msd"),
}
"""Methods whose trees are grown level by level from what was trained."""
PROPOSALS = {"hidden-transfer", "ppd"}
"""Those whose proposals all take as long."""
TRAINED = SimpleNamespace(rates=((0.5, 0.2), (0.4, 0.2)), share=0.02)


def kit_of(costs, *artefacts):
    return Kit(ShapedTarget(toy_law(5, 4), GreedyRule()), None, artefacts, lambda: costs)


def written(drafter, target, tokens=80):
    decoder = SpeculativeDecoder(target, drafter, MatchVerifier(), FixedPolicy(4, 16))
    request = Request((0, 1, 2), max_tokens=tokens, ignore_eos=True)
    return run_coroutines([answer_one(decoder, request)])[0]


@pytest.mark.parametrize("grower", [BestFirstTree(4), RankedTree.of_rates(((0.5,) * 4,) * 4, 16)])
def test_cheap_rows_make_wide_trees_and_dear_ones_narrow_trees(grower):
    """The drafter is often right: where rows are cheap it pays to feed much of its tree."""
    target = ShapedTarget(toy_law(5, 6, sharp=1.0), GreedyRule())
    near = toy_law(5, 6, sharp=1.0)
    near.network.weight = near.network.weight + 0.3 * toy_law(9, 6).network.weight
    plain = written(NothingDrafter(), target)
    nodes = []
    for costs in RECORDED.values():
        own = ModelDrafter(ShapedTarget(near, GreedyRule()), grower)
        done = written(cost_aware_tree(own, TRAINED, kit_of(costs), costs), target)
        assert done.token_ids == plain.token_ids
        nodes.append(done.stats.drafted / done.stats.passes)
    free, gpu, amx, dear, dearest = nodes
    assert min(free, gpu) > 8.0 > 4.0 > amx > 0.3 > dear >= dearest == 0.0, nodes


@pytest.mark.parametrize("name", sorted(TREES | PROPOSALS))
def test_every_recipe_follows_the_rule_unless_told_otherwise(name):
    law = toy_law(5, 4)
    artefacts = example_artefacts(law.vocab)
    costs = RECORDED["a Xeon with AMX"]
    drafters = [
        registry.build(name, kit_of(costs, *artefacts), options)[0].drafter
        for options in ({}, {"cost_aware": "false"})
    ]
    assert [isinstance(drafter, CostAwareDrafter) for drafter in drafters] == [True, False]
    own = drafters[0].free.drafter if name in PROPOSALS else drafters[0].tree.drafter
    assert own == drafters[1]


def test_no_recipe_with_a_tree_of_what_was_trained_is_left_out():
    with_option = {
        name
        for name, module in registry.recipe_modules().items()
        if any(isinstance(need, ArtefactNeed) for need in module.CARD.needs)
        and any(option.name == "cost_aware" for option in registry.method_options(name))
    }
    # What mtp drafts is drawn: its text would hang on the costs.
    assert with_option == TREES | PROPOSALS | {"ngram-draft", "mtp"}
    assert registry.method_option_values("mtp")["cost_aware"] is False


def test_published_trees_are_fed_whole():
    for name in sorted(TREES | PROPOSALS):
        preset = registry.published_preset(name)
        if preset is not None and not preset.refused:
            assert registry.method_option_values(name, {"published": "true"})["cost_aware"] is False


def test_levels_cost_what_was_measured_here_or_what_a_draft_took_in_training():
    law = toy_law(5, 4)
    artefacts = [one for one in example_artefacts(law.vocab) if one.kind in ("eagle", "longspec")]
    eagle, longspec = sorted(artefacts, key=lambda one: one.kind)[0], artefacts[-1]
    assert (eagle.kind, longspec.kind) == ("eagle", "longspec")
    costs = PassCosts((2.0, 2.5), tree_ms=(0.7, 0.3))
    kit = kit_of(costs, eagle, longspec)
    measured = cost_aware_tree(NothingDrafter(), eagle, kit, costs).tree
    assert (measured.first_ms, measured.level_ms) == (0.7, 0.3)
    told = cost_aware_tree(NothingDrafter(), TRAINED, kit, costs).tree
    assert told.first_ms == told.level_ms == pytest.approx(0.02 * 2.0 / 2)
    unmeasured = PassCosts((2.0, 2.5))
    unknown = cost_aware_tree(NothingDrafter(), eagle, kit, unmeasured).tree
    assert unknown.first_ms == eagle.share * 2.0 / len(eagle.rates)
    assert cost_aware_proposal(NothingDrafter(), TRAINED, costs).free == PricedDrafter(
        NothingDrafter(), 0.04
    )
