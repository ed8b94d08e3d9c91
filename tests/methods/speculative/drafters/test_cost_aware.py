"""Cost-aware drafting: feed what pays."""

from dataclasses import dataclass, field

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.lab.testing.check_decoder import check_decoder
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.drafters.capped import CappedDrafter
from polydec.methods.speculative.drafters.cost_aware import ChanceBelief, CostAwareDrafter
from polydec.methods.speculative.drafters.first_of import FirstOfDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.merged_tree import MergedTreeDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.priced import PricedDrafter
from polydec.methods.speculative.drafters.priced_tree import PricedTree, TreeYield, class_of
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.loop.events import ProposedEvent
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from reasoned import Reasoned

FREE, DEAR = PassCosts((1.0, 1.0), 0.0), PassCosts((1.0, 2.5), 0.1)
USUAL = PassCosts((1.0, 1.1), 0.1)


def paid(seed=91, greedy=True):
    target = toy_law(seed, cost=0.1)
    return ModelDrafter(ShapedTarget(target, GreedyRule()) if greedy else target, ChainTree())


DRAWING_MODEL = paid(greedy=False)


@pytest.mark.parametrize("costs", [FREE, DEAR, USUAL], ids=["free", "dear", "usual"])
@pytest.mark.parametrize(
    "model", [None, paid(), DRAWING_MODEL], ids=["no model", "greedy model", "drawing model"]
)
def test_contract(record_counts, costs, model):
    record_counts(
        check_drafter(
            Reasoned(CostAwareDrafter(LookupDrafter(), model, costs), unexercised(costs, model))
        )
    )


def unexercised(costs, model):
    """What its contract never sees, and why."""
    if costs == DEAR:
        return dict.fromkeys(
            ("drafted", "accepted", "rejected", "proposing", "distinct", "learned"),
            "no draft pays where each row costs more than a pass",
        )
    return {}


def drafts(drafter, target, n=60, prompt=(0, 1, 0, 1, 0), **given):
    sizes = []

    def on(event):
        if isinstance(event, ProposedEvent):
            sizes.append(len(event.token) - 1)

    decoder = SpeculativeDecoder(
        ShapedTarget(target, GreedyRule()), drafter, MatchVerifier(), FixedPolicy(4, 8)
    )
    result = run_coroutines(
        [answer_one(decoder, Request(prompt, max_tokens=n, ignore_eos=True), on=on)]
    )[0]
    return result, sizes


def test_where_rows_cost_too_much_nothing_is_fed():
    """Reduces to `nothing`."""
    _, sizes = drafts(CostAwareDrafter(LookupDrafter(), paid(), DEAR), toy_law(3))
    assert set(sizes) == {0}


def test_where_rows_cost_nothing_all_is_fed():
    """Reduces to its source."""
    target = toy_law(3)
    ours, mine = drafts(CostAwareDrafter(LookupDrafter(), None, FREE), target)
    theirs, sizes = drafts(LookupDrafter(), target)
    assert ours.token_ids == theirs.token_ids and mine == sizes


def test_a_model_that_is_right_is_asked_and_one_that_is_wrong_soon_is_not():
    costs = PassCosts((1.0, 1.3), 0.05)
    target = toy_law(5, 3)
    asked = []

    class Watched(ChainTree):
        async def grow_tree(self, *args):
            asked.append(1)
            return await super().grow_tree(*args)

    for seed, most, least in ((5, 60, 15), (77, 35, 1)):
        asked.clear()
        opposite = toy_law(seed, 3)
        if seed == 77:  # sure of what never comes
            opposite.network.weight = -8 * target.network.weight
        result, _ = drafts(
            CostAwareDrafter(
                NothingDrafter(),
                ModelDrafter(ShapedTarget(opposite, GreedyRule()), Watched()),
                costs,
            ),
            target,
        )
        assert least <= len(asked) <= most
        if seed == 5:
            assert result.stats.passes < 45


def test_more_sequences_make_rows_dearer():
    """What pays alone need not pay in company: a pass is then as long as its rows."""
    costs = PassCosts((1.0, 1.1, 1.2, 1.3, 2.6, 3.9, 5.2, 6.5))
    target = toy_law(3)
    _, alone = drafts(CostAwareDrafter(LookupDrafter(), None, costs), target)
    others = [target.open_session((0, 1)) for _ in range(7)]
    _, together = drafts(CostAwareDrafter(LookupDrafter(), None, costs), target)
    assert len(others) == 7 and sum(together) < sum(alone)


def test_a_model_is_asked_alone_and_not_where_rows_cost_nearly_what_a_token_saves():
    """In company asking would pay only if the draft were nearly always right."""
    eight = [1.02 + 0.27 * more for more in range(7)]
    costs = PassCosts((1.0, *eight, *[eight[-1] + 0.22 * more for more in range(1, 10)]), 0.04)
    target = toy_law(5, 3)
    asked = []

    class Watched(ChainTree):
        async def grow_tree(self, *args):
            asked.append(1)
            return await super().grow_tree(*args)

    model = ModelDrafter(ShapedTarget(toy_law(5, 3), GreedyRule()), Watched())
    drafts(CostAwareDrafter(NothingDrafter(), model, costs), target)
    assert asked
    asked.clear()
    others = [target.open_session((0, 1)) for _ in range(7)]
    drafts(CostAwareDrafter(NothingDrafter(), model, costs), target)
    assert len(others) == 7 and not asked


def test_belief():
    b = ChanceBelief()
    assert b(1.0) == 1.0 and b(0.0) == 0.0
    for _ in range(500):
        b.count_outcome(0.9, False)
        b.count_outcome(0.4, True)
    assert b(0.9) < 0.05 and b(0.4) > 0.95 and b(0.6) == pytest.approx(0.6)


def test_what_it_wants_is_what_both_want():
    guess = CostAwareDrafter(LookupDrafter(), paid(), PassCosts()).open_guess(
        (0, 1), toy_law(1).open_session((0, 1))
    )
    assert guess.want == ScoreRequest(law=RowDetail.NOTHING)
    twin = guess.fork_guess(toy_law(1).open_session((0, 1)))
    twin.ledger.paths.count_outcome(0.5, True)
    assert sum(guess.ledger.paths.rates.tried) == 0


def test_drawn_nodes_of_the_source_are_never_cut():
    row = torch.log_softmax(torch.randn(3), 0)

    class Drawn:
        price = 0.0
        want = ScoreRequest(law=RowDetail.NOTHING)

        def open_guess(self, prompt, session):
            return self

        async def propose_draft(self, root, position, budget, rng):
            return Draft.chain_draft(root, (0, 1), (row, row))

    guess = CostAwareDrafter(Drawn(), None, PassCosts((1.0, 1.5), 0.0)).open_guess(
        (0, 1), toy_law(1).open_session((0, 1))
    )
    draft = run_coroutines([guess.propose_draft(1, 2, DraftBudget(4, 8), Rng.of_choice(0))])[0]
    assert draft.token == (1, 0, 1)


def test_who_is_not_asked_learns_when_next_asked():
    """In a large batch nothing pays and nobody looks; alone again the copier knows all that was written."""

    class Crowd:
        peers = 8

    text = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    guess = CostAwareDrafter(
        SuffixDrafter(floor=0.05), None, PassCosts((1.0, 1.1, *[3.0 * m for m in range(3, 20)]))
    ).open_guess(text[:3], Crowd)

    def step(n):
        draft = run_coroutines(
            [guess.propose_draft(text[n - 1], n, DraftBudget(4, 8), Rng.of_choice(n))]
        )[0]
        guess.learn_round(draft, None, Verdict((), text[n]))
        return len(draft)

    assert {step(n) for n in range(3, 10)} == {1} and guess.free.text == text[:3]
    Crowd.peers = 1
    assert step(10) > 1 and guess.free.text == text[:11]
    Crowd.peers = 8
    step(11)
    assert guess.free.text == text[:11]
    guess.close()
    assert guess.free.text == text


class Cyclic:
    """Computes: says that the text counts on modulo 3, and takes `price` milliseconds for it."""

    want = ScoreRequest(law=RowDetail.NOTHING)

    def __init__(self, price, step=1):
        self.price, self.step, self.asked = price, step, 0

    def open_guess(self, prompt, session):
        return self

    async def propose_draft(self, root, position, budget, rng):
        self.asked += 1
        n = min(budget.depth, budget.nodes)
        tokens = [(root + self.step * i) % 3 for i in range(n + 1)]
        return Draft.certain_tree(tokens, range(-1, n), (1.0, *[0.95] * n))

    def learn_round(self, draft, scores, verdict):
        pass

    def fork_guess(self, session=None, choice=None):
        return self

    def close(self):
        pass


def counting():
    """A target that counts on modulo 3."""
    target = toy_law(1, 3)
    for x in range(3):
        target.network.weight[:, x] = 20.0 * torch.nn.functional.one_hot(
            torch.tensor((x + 1) % 3), 3
        )
    return target


CHEAP_ROWS = PassCosts((1.0, 1.01, 1.02, 1.03, 1.04, 1.05))


def test_a_drafter_that_computes_is_asked_while_it_is_worth_its_price():
    plain = drafts(NothingDrafter(), counting())[0]
    passes = {}
    for price in (0.0, 0.5, 3.9, 40.0):  # a round of five tokens saves what four take
        drafter = Cyclic(price)
        result, _ = drafts(CostAwareDrafter(drafter, None, CHEAP_ROWS), counting(), 200)
        assert result.token_ids[:60] == plain.token_ids
        passes[price] = result.stats.passes
        if price in (0.0, 0.5):
            assert drafter.asked == result.stats.passes <= 42
    assert passes[40.0] == 200, "what costs more than it can ever save is never asked"
    assert passes[0.5] < 0.5 * passes[3.9], (
        "what hardly pays at first, and not at all once text is cheap, is given up"
    )


def test_a_drafter_that_computes_and_is_wrong_is_seldom_asked_again():
    for price, most in ((0.0, 200), (0.3, 25)):
        drafter = Cyclic(price, step=2)
        result, _ = drafts(CostAwareDrafter(drafter, None, CHEAP_ROWS), counting(), 200)
        assert drafter.asked <= most and result.stats.passes == 200
        assert price or drafter.asked == 200, "what costs nothing is always heard"


def test_prices_add_up():
    session = toy_law(1).open_session((0, 1))
    price = (
        CostAwareDrafter(
            MergedTreeDrafter(
                (
                    PricedDrafter(LookupDrafter(), 0.25),
                    FirstOfDrafter((PricedDrafter(LookupDrafter(), 1.0), Cyclic(2.0))),
                )
            ),
            CappedDrafter(Cyclic(4.0)),
            PassCosts(),
        )
        .open_guess((0, 1), session)
        .price
    )
    assert (
        price == 7.25 and PricedDrafter(Cyclic(2.0), 0.5).open_guess((0, 1), session).price == 2.5
    )
    assert SuffixDrafter().open_guess((0, 1), session).price == 0.0
    with pytest.raises(ValueError, match=r"ms is -1\.0: it must be finite and at least 0"):
        PricedDrafter(LookupDrafter(), -1.0)


@dataclass(frozen=True)
class Probing:
    """A candidate below the root, and a chain of probes below the root and below the candidate."""

    chance: float
    price: float = 0.0
    want: ScoreRequest = field(default_factory=lambda: ScoreRequest(law=RowDetail.NOTHING))

    def open_guess(self, prompt, session):
        return self

    async def propose_draft(self, root, position, budget, rng):
        if budget.depth < 2:
            return Draft.chain_draft(root)
        return Draft(
            (root, 1, 0, 0, 0),
            (-1, 0, 0, 1, 3),
            (DrawKind.CERTAIN,) * 5,
            (None,) * 5,
            (False, False, True, True, True),
            (1.0, self.chance, 0.0, 0.0, 0.0),
        )

    def learn_round(self, draft, scores, verdict):
        for i in range(len(draft)):
            scores.logprob_row(i)

    def fork_guess(self, session=None, choice=None):
        return self

    def close(self):
        pass


@pytest.mark.parametrize(
    "wrap",
    [lambda d: d, lambda d: MergedTreeDrafter((d, RecyclingDrafter(2, 4)))],
    ids=["alone", "grafted"],
)
def test_probes_go_where_what_they_stand_on_goes(wrap):
    for chance in (0.01, 0.99):
        drafter = CostAwareDrafter(wrap(Probing(chance)), None, PassCosts())
        result, sizes = drafts(drafter, toy_law(1, 5, eos=-1), 40)
        assert (
            result.token_ids == drafts(NothingDrafter(), toy_law(1, 5, eos=-1), 40)[0].token_ids
            and len(sizes) == result.stats.passes
        )
    guess = CostAwareDrafter(Probing(0.01), None, PassCosts()).open_guess(
        (0, 1), toy_law(1).open_session((0, 1))
    )
    draft = run_coroutines([guess.propose_draft(1, 2, DraftBudget(4, 8), Rng.of_choice(0))])[0]
    assert draft.token == (1, 0) and draft.probe == (False, True), (
        "the root's probe is fed, the candidate is not worth a row"
    )
    guess = CostAwareDrafter(Probing(0.99), None, PassCosts((1.0, 1.01))).open_guess(
        (0, 1), toy_law(1).open_session((0, 1))
    )
    assert (
        len(run_coroutines([guess.propose_draft(1, 2, DraftBudget(4, 8), Rng.of_choice(0))])[0])
        == 5
    )
    assert (
        len(run_coroutines([guess.propose_draft(1, 2, DraftBudget(4, 3), Rng.of_choice(0))])[0])
        == 2
    ), "a candidate whose probes do not fit stays out"


def trained(seed, first_ms, level_ms):
    """What draws likeliest paths of a model, as a trained drafter would."""
    own = ModelDrafter(ShapedTarget(toy_law(seed, 3), GreedyRule()), BestFirstTree(2, 1))
    return PricedTree(own, first_ms, level_ms)


@pytest.mark.parametrize(
    "target", [ShapedTarget(toy_law(3, 3), GreedyRule()), toy_law(3, 3)], ids=["greedy", "law"]
)
def test_a_trained_tree_changes_no_text_and_keeps_the_contract(record_counts, target):
    drafter = CostAwareDrafter(
        LookupDrafter(), None, PassCosts((1.0, 1.02, 1.04)), tree=trained(3, 0.05, 0.02)
    )
    request = Request((0, 1, 0, 1, 0), max_tokens=60, ignore_eos=True, seed=5)
    ours, plain = (
        run_coroutines(
            [answer_one(SpeculativeDecoder(target, d, MatchVerifier(), FixedPolicy(4, 8)), request)]
        )[0]
        for d in (drafter, NothingDrafter())
    )
    assert ours.token_ids == plain.token_ids and ours.stats.passes < plain.stats.passes
    record_counts(check_drafter(drafter))


def test_a_trained_tree_is_asked_where_it_is_expected_to_pay():
    passes = {}
    for price in (0.0, 0.1, 5.0):
        tree = trained(3, price, price / 2)
        result, sizes = drafts(
            CostAwareDrafter(NothingDrafter(), None, PassCosts((1.0, 1.05, 1.1)), tree=tree),
            toy_law(3, 3),
        )
        passes[price] = result.stats.passes
        assert (max(sizes) > 0) == (price < 5.0)
    assert passes[0.1] < 60 == passes[5.0]


def test_a_trained_tree_that_is_wrong_is_soon_left_alone():
    asked = []

    class Watched(BestFirstTree):
        async def grow_tree(self, *args):
            asked.append(1)
            return await super().grow_tree(*args)

    target, opposite = toy_law(5, 3), toy_law(77, 3)
    opposite.network.weight = -8 * target.network.weight
    own = ModelDrafter(ShapedTarget(opposite, GreedyRule()), Watched(1))
    tree = PricedTree(own, 0.2, 0.1)
    drafts(CostAwareDrafter(NothingDrafter(), None, PassCosts((1.0, 1.05, 1.1)), tree=tree), target)
    assert 1 <= len(asked) <= 30


def test_company_asks_no_tree_that_pays_alone():
    costs, tree = PassCosts((1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)), trained(3, 0.2, 0.05)
    target = toy_law(3, 3)
    _, alone = drafts(CostAwareDrafter(NothingDrafter(), None, costs, tree=tree), target)
    others = [target.open_session((0, 1)) for _ in range(7)]
    _, together = drafts(CostAwareDrafter(NothingDrafter(), None, costs, tree=tree), target)
    assert len(others) == 7 and sum(alone) > 0 == sum(together)


@pytest.mark.parametrize(
    "fields, words", [((-1.0, 0.0), "first_ms is -1.0"), ((0.0, -2.0), "level_ms is -2.0")]
)
def test_a_trained_tree_has_a_price(fields, words):
    with pytest.raises(ValueError, match=words):
        trained(3, *fields)


def test_where_a_tree_is_asked_the_law_stays_to_the_last_digit(record_counts):
    """Enumerated: the free source names certain tokens, or draws them."""
    costs = PassCosts((1.0, 1.02, 1.04))

    def make(free):
        def decoder(target, draft):
            grown = ModelDrafter(ShapedTarget(draft, GreedyRule()), BestFirstTree(2, 1))
            tree = PricedTree(grown, 0.01, 0.01)
            drafter = CostAwareDrafter(free(draft), None, costs, tree=tree)
            return SpeculativeDecoder(target, drafter, MatchVerifier(), FixedPolicy(2, 4))

        return decoder

    record_counts(check_decoder(make(lambda draft: LookupDrafter()), laws=4))
    record_counts(check_decoder(make(lambda draft: ModelDrafter(draft, ChainTree())), laws=2))


@dataclass(frozen=True)
class Likely(Probing):
    """Two tokens in a row, with chances."""

    tokens: tuple[int, ...] = ()

    async def propose_draft(self, root, position, budget, rng):
        return Draft.certain_tree((root, *self.tokens), (-1, 0, 1), (1.0, self.chance, self.chance))

    def learn_round(self, draft, scores, verdict):
        pass


def test_a_tree_that_names_what_is_there_anyway_brings_nothing():
    """What copies would have fed without it is not its merit."""

    def brought(free, text):
        """Tokens that asking brought, by classes of steps, where this is what comes."""
        target = toy_law(3, 3)
        guess = CostAwareDrafter(
            free, None, PassCosts((1.0, 1.01, 1.02)), tree=trained(3, 0.05, 0.02)
        ).open_guess((0, 1), target.open_session((0, 1)))
        draft = run_coroutines([guess.propose_draft(1, 2, DraftBudget(2, 3), Rng.of_choice(0))])[0]
        path = tuple(draft.nodes_of((1, *text))[1:])
        guess.learn_round(draft, None, Verdict(path, 0))
        assert len(path) == 2 and max(guess.ledger.tree.counts.tried) == 1.0
        return max(guess.ledger.tree.counts.right)

    assert brought(NothingDrafter(), (0, 1)) == 2.0
    assert brought(Likely(0.3, tokens=(0, 1)), (0, 1)) == 0.0


def test_a_fork_has_a_tree_of_its_own():
    target = toy_law(3, 3)
    drafter = CostAwareDrafter(
        NothingDrafter(), None, PassCosts((1.0, 1.01, 1.02)), tree=trained(3, 0.05, 0.02)
    )
    guess = drafter.open_guess((0, 1), target.open_session((0, 1)))
    assert guess.tree is not None is not guess.fork_guess(target.open_session((0, 1))).tree
    assert guess.fork_guess(target.open_session((0, 1))).tree is not guess.tree


def test_a_class_of_steps_in_which_a_tree_brought_nothing_is_tried_again():
    brought = TreeYield()
    for _ in range(40):
        brought.count_tokens(0, 0.0)
    low = brought.expected_tokens(0, 0.6)
    for _ in range(1000):
        brought.pass_over(0)
    assert (
        low < 0.2 < 0.5 < brought.expected_tokens(0, 0.6) and brought.expected_tokens(1, 0.6) == 0.6
    )


def test_what_a_tree_brings_follows_how_often_it_is_right():
    drafter = trained(3, 0.1, 0.1).drafter
    twice = PricedTree(drafter, 0.1, 0.1, 2 * 0.3).expected_gain(0)
    assert twice == pytest.approx(2 * PricedTree(drafter, 0.1, 0.1, 0.3).expected_gain(0))
    costs = PassCosts((1.0, 1.05), tree_ms=(0.2, 0.1))
    assert PricedTree.by_costs((drafter, 0.5), costs) == PricedTree(drafter, 0.2, 0.1, 0.5)
    unknown = PricedTree.by_costs((drafter, 0.5), PassCosts((1.0, 1.05)))
    assert unknown == PricedTree(drafter, 0.0, 0.0, 0.5)
    assert PricedTree(drafter, 0.3, 0.2).least_ms(0.25) == 0.75


def test_the_class_of_a_step_is_its_best_first_chance():
    assert class_of(Draft.chain_draft(0)) == 0
    two = Draft.certain_tree((0, 1, 2, 3), (-1, 0, 0, 1), (1.0, 0.2, 0.4, 0.99))
    assert class_of(two) == 2, "what stands below the first tokens does not count"
    assert class_of(Draft.certain_tree((0, 1), (-1, 0), (1.0, 1.0))) == 5


def test_what_a_tree_took():
    tree = trained(3, 1.0, 0.25)
    assert tree.took_ms(Draft.chain_draft(0, (1, 2)), 4) == 1.5  # a third level named nothing
    assert tree.took_ms(Draft.chain_draft(0, (1, 2)), 2) == 1.25
    assert tree.tree_budget(DraftBudget(20, 99), 1.0) == DraftBudget(8, 24, floor=0.5)
