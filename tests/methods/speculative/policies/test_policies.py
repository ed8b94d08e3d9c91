"""How much to guess: what the rules are, what they reduce to, and that they see what a greedy draft's model thought."""

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.examples import example_stop_head
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.additive import AdditivePolicy
from polydec.methods.speculative.policies.confidence import ConfidencePolicy
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.best_slot import BestSlotTree
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.coupled_chain import CoupledChainTree
from polydec.methods.speculative.trees.coupled_static import CoupledStaticTree
from polydec.methods.speculative.trees.greedy_growth import GreedyGrowthTree
from polydec.methods.speculative.trees.learned_stop import LearnedStopTree
from polydec.methods.speculative.trees.sequences import SequencesTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.trees.stochastic_beam import StochasticBeamTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier


def depths(policy, accepted):
    """The depths of a run of chains of which so many tokens were accepted (None: all)."""
    state, out = policy.start_state(), []
    for a in accepted:
        depth = policy.draft_budget(state).depth
        out.append(depth)
        path = tuple(range(1, 1 + (depth if a is None else a)))
        state = policy.observe_round(state, Draft.chain_draft(0, (1,) * depth), Verdict(path, 2))
    return out


def test_additive_rises_and_falls_within_its_bounds():
    assert depths(AdditivePolicy(), [None, None, 0, 3, None]) == [5, 7, 9, 8, 7]
    assert depths(AdditivePolicy(first=2), [0] * 4) == [2, 1, 1, 1]
    assert depths(AdditivePolicy(first=5, most=6), [None] * 3) == [5, 6, 6]
    assert AdditivePolicy(nodes=7).draft_budget(3) == DraftBudget(3, 7)


def test_a_round_without_a_draft_changes_nothing():
    assert AdditivePolicy().observe_round(4, Draft.chain_draft(1), Verdict((), 2)) == 4


def test_a_cut_draft_counts_as_whole_where_all_that_was_left_of_it_was_accepted():
    assert AdditivePolicy().observe_round(5, Draft.chain_draft(0, (1, 1)), Verdict((1, 2), 2)) == 7


@pytest.mark.parametrize(
    "policy", [AdditivePolicy(4, rise=0, fall=0), AdditivePolicy(4, 4, 4), ConfidencePolicy(0.0, 4)]
)
def test_reduces_to_fixed(policy):
    for seed in range(4):
        request = Request((0, 1), max_tokens=30, seed=seed, ignore_eos=True)
        drafter = ModelDrafter(toy_law(5, 6, cost=0.1), ChainTree())
        a, b = (
            run_coroutines(
                [
                    answer_one(
                        SpeculativeDecoder(toy_law(4, 6), drafter, ExactVerifier(), p), request
                    )
                ]
            )[0]
            for p in (policy, FixedPolicy(4))
        )
        assert a == b


def test_stops_after_a_weak_draw_and_keeps_it():
    budget, lengths = ConfidencePolicy(0.2, 6).draft_budget(None), set()
    for seed in range(30):
        draft = run_coroutines(
            [
                ChainTree().grow_tree(
                    toy_law(3, 6).open_session((0, 1)), 1, 2, budget, Rng.of_choice(seed)
                )
            ]
        )[0]
        q = [float(law[x].exp()) for law, x in zip(draft.law[1:], draft.token[1:], strict=True)]
        assert all(x >= 0.2 for x in q[:-1]) and (q[-1] < 0.2 or len(q) == 6)
        lengths.add(len(q))
    assert len(lengths) > 1


TREES = [
    ChainTree(),
    StaticTree((1, 1, 1, 1)),
    CoupledChainTree(),
    CoupledStaticTree((1, 1, 1, 1)),
    StochasticBeamTree(1),
    SequencesTree(1),
    BestFirstTree(1),
    GreedyGrowthTree(floor=1.0),
    BestSlotTree(floor=1.0),
    LearnedStopTree(example_stop_head(), 1.0),
]


@pytest.mark.parametrize("tree", TREES, ids=lambda t: type(t).__name__)
def test_a_greedy_draft_is_weighed_by_its_models_own_probability(tree):
    """Not by that of the shaped law, which is 1."""
    own = toy_law(8, 5)
    plain = run_coroutines(
        [
            ChainTree().grow_tree(
                ShapedTarget(own, GreedyRule()).open_session((0, 1)),
                1,
                2,
                DraftBudget(4, 4),
                Rng.of_choice(0),
            )
        ]
    )[0]
    rows = run_coroutines([own.open_session((0, 1)).score_draft(plain, ScoreRequest())])[0]
    q = [float(rows.logprob_row(i)[x].exp()) for i, x in enumerate(plain.token[1:])]
    for threshold in (0.0, min(q) + 1e-6, 1.0):
        want = next((i for i, x in enumerate(q, 1) if x < threshold), 4)
        for shapers in ((GreedyRule(),), (TemperatureRule(0.3), GreedyRule())):
            draft = run_coroutines(
                [
                    tree.grow_tree(
                        ShapedTarget(own, *shapers).open_session((0, 1)),
                        1,
                        2,
                        ConfidencePolicy(threshold, 4).draft_budget(None),
                        Rng.of_choice(0),
                    )
                ]
            )[0]
            assert draft.token == plain.token[: want + 1]
            assert draft.chance == (1.0, *[pytest.approx(x) for x in q[:want]])


def test_without_grading_a_certain_draw_counts_as_one():
    draft = run_coroutines(
        [
            ChainTree().grow_tree(
                ShapedTarget(toy_law(8, 5), GreedyRule()).open_session((0, 1)),
                1,
                2,
                DraftBudget(4, 4, go_on=lambda d, q: q > 0.99),
                Rng.of_choice(0),
            )
        ]
    )[0]
    assert len(draft) == 5 and draft.chance == (1.0,) * 5


@pytest.mark.parametrize(
    "policy",
    [AdditivePolicy(2, 1, 3), ConfidencePolicy(0.3, 3), ConfidencePolicy(0.6, 3, 6)],
    ids=str,
)
@pytest.mark.parametrize(
    "tree", [ChainTree(), StaticTree((2, 1, 1))], ids=lambda t: type(t).__name__
)
def test_the_law_stays(record_counts, policy, tree):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(t, ModelDrafter(d, tree), ExactVerifier(), policy),
            laws=4,
            length=2,
        )
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: AdditivePolicy(first=17),
            "first is 17: it must lie in 1 to 16, the bounds least and most",
        ),
        (lambda: AdditivePolicy(least=0), "least is 0: it must lie in 1 to most, which is 16"),
        (lambda: AdditivePolicy(most=65), "most is 65: it must lie in 1 to 64"),
        (lambda: AdditivePolicy(rise=-1), "rise is -1: it must lie in 0 to 64"),
        (lambda: AdditivePolicy(nodes=-1), "nodes is -1: it must lie in 0 to 1024"),
        (lambda: ConfidencePolicy(1.5), "threshold is 1.5: it must lie in 0 to 1"),
        (lambda: ConfidencePolicy(depth=65), "depth is 65: it must lie in 0 to 64"),
        (lambda: ConfidencePolicy(nodes=2000), "nodes is 2000: it must lie in 0 to 1024"),
        (
            lambda: build("draft-model-confidence", toy_law(1), toy_law(2), {"threshold": "2"}),
            "threshold is 2.0",
        ),
    ],
)
def test_one_clear_sentence(make, message):
    with pytest.raises(ValueError, match="it must lie in") as error:
        make()
    assert message in str(error.value)
