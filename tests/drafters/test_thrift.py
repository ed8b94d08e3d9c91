"""Thrift: feed what pays."""
import pytest
import torch

from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run
from polydec.core.trace import Proposed
from polydec.core.types import Budget, Draft, Reads, Verdict, Want
from polydec.drafters.lookup import Lookup
from polydec.drafters.model import FromModel
from polydec.drafters.nothing import Nothing
from polydec.drafters.suffix import Suffix
from polydec.drafters.thrift import Belief, Thrift
from polydec.policies.fixed import Fixed
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.testing.check_drafter import check_drafter
from polydec.testing.toy import toy
from polydec.trees.chain import Chain
from polydec.verifiers.match import Match

FREE, DEAR = Costs((1.0, 1.0), 0.0), Costs((1.0, 2.5), 0.1)


def paid(seed=91, greedy=True):
    target = toy(seed, cost=0.1)
    return FromModel(Shaped(target, Greedy()) if greedy else target, Chain())


@pytest.mark.parametrize("costs", [FREE, DEAR, Costs()], ids=["free", "dear", "default"])
@pytest.mark.parametrize("model", [None, paid(), paid(greedy=False)], ids=["no model", "greedy model", "drawing model"])
def test_contract(costs, model):
    check_drafter(Thrift(Lookup(), model, costs))


def drafts(drafter, target, n=60, prompt=(0, 1, 0, 1, 0), **given):
    sizes = []
    def on(event):
        if isinstance(event, Proposed):
            sizes.append(len(event.token) - 1)
    decoder = Speculative(Shaped(target, Greedy()), drafter, Match(), Fixed(4, 8))
    result = run([decoder.run(Request(prompt, max_tokens=n, ignore_eos=True), on=on)])[0]
    return result, sizes


def test_where_rows_cost_too_much_nothing_is_fed():
    """Reduces to `nothing`."""
    _, sizes = drafts(Thrift(Lookup(), paid(), DEAR), toy(3))
    assert set(sizes) == {0}


def test_where_rows_cost_nothing_all_is_fed():
    """Reduces to its source."""
    target = toy(3)
    ours, mine = drafts(Thrift(Lookup(), None, FREE), target)
    theirs, sizes = drafts(Lookup(), target)
    assert ours.token_ids == theirs.token_ids and mine == sizes


def test_a_model_that_is_right_is_asked_and_one_that_is_wrong_soon_is_not():
    costs = Costs((1.0, 1.3), 0.05)
    target = toy(5, 3)
    asked = []
    class Watched(Chain):
        async def grow(self, *args):
            asked.append(1)
            return await super().grow(*args)
    for seed, most, least in ((5, 60, 15), (77, 35, 1)):
        asked.clear()
        opposite = toy(seed, 3)
        if seed == 77:                            # sure of what never comes
            opposite.network.weight = -8 * target.network.weight
        result, _ = drafts(Thrift(Nothing(), FromModel(Shaped(opposite, Greedy()), Watched()), costs), target)
        assert least <= len(asked) <= most
        if seed == 5:
            assert result.stats.passes < 45


def test_more_sequences_make_rows_dearer():
    """What pays alone need not pay in company: a pass is then as long as its rows."""
    costs = Costs((1.0, 1.1, 1.2, 1.3, 2.6, 3.9, 5.2, 6.5))
    target = toy(3)
    _, alone = drafts(Thrift(Lookup(), None, costs), target)
    others = [target.open((0, 1)) for _ in range(7)]
    _, together = drafts(Thrift(Lookup(), None, costs), target)
    assert len(others) == 7 and sum(together) < sum(alone)


def test_belief():
    b = Belief()
    assert b(1.0) == 1.0 and b(0.0) == 0.0
    for _ in range(500):
        b.see(0.9, False)
        b.see(0.4, True)
    assert b(0.9) < 0.05 and b(0.4) > 0.95 and b(0.6) == pytest.approx(0.6)


def test_what_it_wants_is_what_both_want():
    guess = Thrift(Lookup(), paid(), Costs()).open((0, 1), toy(1).open((0, 1)))
    assert guess.want == Want(law=Reads.NOTHING)
    twin = guess.fork()
    twin.ledger.paths.see(0.5, True)
    assert sum(guess.ledger.paths.rates.tried) == 0


def test_drawn_nodes_of_the_source_are_never_cut():
    row = torch.log_softmax(torch.randn(3), 0)

    class Drawn:
        want = Want(law=Reads.NOTHING)
        def open(self, prompt, session):
            return self
        async def propose(self, root, position, budget, rng):
            return Draft.chain(root, (0, 1), (row, row))
    guess = Thrift(Drawn(), None, Costs((1.0, 1.5), 0.0)).open((0, 1), toy(1).open((0, 1)))
    from polydec.core.rng import Rng
    from polydec.core.types import Budget
    draft = run([guess.propose(1, 2, Budget(4, 8), Rng.of(0))])[0]
    assert draft.token == (1, 0, 1)


def test_who_is_not_asked_learns_when_next_asked():
    """In a large batch nothing pays and nobody looks; alone again the copier knows all that was written."""
    class Crowd:
        peers = 8
    text = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    guess = Thrift(Suffix(floor=0.05), None, Costs((1.0, 1.1, *[3.0 * m for m in range(3, 20)]))).open(text[:3], Crowd)
    def step(n):
        draft = run([guess.propose(text[n - 1], n, Budget(4, 8), Rng.of(n))])[0]
        guess.learn(draft, None, Verdict((), text[n]))
        return len(draft)
    assert {step(n) for n in range(3, 10)} == {1} and guess.free.text == text[:3]
    Crowd.peers = 1
    assert step(10) > 1 and guess.free.text == text[:11]
    Crowd.peers = 8
    step(11)
    assert guess.free.text == text[:11]
    guess.close()
    assert guess.free.text == text
