"""Hierarchical drafting: two levels, both exact."""

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import Scheduler, run
from polydec.core.types import Draw, Reads, Want
from polydec.drafters.hierarchical import Hierarchical
from polydec.drafters.lookup import Lookup
from polydec.drafters.model import FromModel
from polydec.drafters.nothing import Nothing
from polydec.drafters.recycling import Recycling
from polydec.families.ar.speculative import Speculative
from polydec.families.ar.types import Budget, Verdict
from polydec.policies.confidence import Confidence
from polydec.policies.fixed import Fixed
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.testing.check_decoder import check_decoder, check_law
from polydec.testing.check_drafter import check_drafter
from polydec.testing.toy import toy
from polydec.trees.chain import Chain
from polydec.trees.static import Static
from polydec.verifiers.coupled import Coupled
from polydec.verifiers.exact import Exact
from polydec.verifiers.match import Match

INNER = {
    "nothing": Nothing(),
    "lookup": Lookup(),
    "recycling": Recycling(2, 4),
    "model": FromModel(toy(93, cost=0.01), Chain()),
    "tree": FromModel(toy(93, cost=0.01), Static((2, 1))),
}


def greedy(target):
    return Shaped(target, Greedy())


def propose(drafter, prompt, budget=None, seed=0):
    guess = drafter.open(prompt, None)
    return run([guess.propose(prompt[-1], len(prompt), budget or Budget(5, 5), Rng.of(seed))])[0]


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("verifier", [Match(), Exact(), Coupled()], ids=lambda v: type(v).__name__)
def test_the_chain_has_the_small_models_law(name, verifier):
    """Under a target that is the small model itself nothing is ever rejected, and the text has its law."""
    check_law(
        lambda t, d: Speculative(
            t, Hierarchical(d, INNER[name], verifier, 2, 4), Exact(), Fixed(2)
        ),
        laws=3,
        length=2,
        shapings=("plain",),
    )
    small = toy(3, 3, eos=-1)
    for seed in range(4):
        result = run(
            [
                answer_one(
                    Speculative(
                        small, Hierarchical(small, INNER[name], verifier), Exact(), Fixed(4)
                    ),
                    Request((0, 1, 0), 30, seed=seed),
                )
            ]
        )[0]
        assert result.stats.accepted == result.stats.drafted > 0


def test_the_law_stays_over_three_tokens_and_with_shapers():
    check_law(
        lambda t, d: Speculative(
            t, Hierarchical(d, Recycling(2, 3), Match(), 2, 3), Exact(), Fixed(3)
        ),
        laws=2,
        length=3,
    )


def test_it_may_stop_early():
    def make(target, draft):
        return Speculative(
            target, Hierarchical(draft, Recycling(2, 3), Match(), 2, 3), Exact(), Confidence(0.5, 4)
        )

    check_decoder(make, laws=2, length=2)


@pytest.mark.parametrize("name", ["lookup", "recycling"])
def test_greedy_chains_are_the_small_models_greedy_text(name):
    for seed in range(6):
        small, prompt = greedy(toy(seed, 6, eos=-1)), (0, 1, 2, 3, 0, 1)
        want = run(
            [answer_one(Speculative(small, Nothing(), Match(), Fixed(0)), Request(prompt, 5))]
        )[0].token_ids
        draft = propose(Hierarchical(small, INNER[name], Match()), prompt)
        assert draft.token[1:] == want and set(draft.draw) == {Draw.CERTAIN}


def test_without_inner_drafts_it_is_a_chain():
    for seed in range(4):
        requests, target, small = (
            Request((0, 1, 2), 24, seed=seed),
            toy(1, 5, eos=-1),
            greedy(toy(2, 5, eos=-1, cost=0.1)),
        )
        a, b = (
            run([answer_one(Speculative(greedy(target), d, Exact(), Fixed(3)), requests)])[0]
            for d in (Hierarchical(small, Recycling(2, 4), Match(), 0), FromModel(small, Chain()))
        )
        assert a == b


def test_what_a_shaper_sees_of_the_small_model_is_the_true_text():
    """After every round the small session stands where a fresh one would, and so does the inner drafter."""
    small = toy(5, 6, eos=-1, cost=0.1)
    how = Hierarchical(small, Lookup(2, 1), Match(), 3, 3)
    prompt, text = (0, 1, 2, 0, 1), [0, 1, 2, 0, 1]
    guess = how.open(prompt, None)

    async def rounds():
        for n, keep in enumerate((5, 0, 2, 1, 5, 5, 3, 0)):
            draft = await guess.propose(text[-1], len(text), Budget(5, 5), Rng.of(n))
            assert len(draft) == 6
            fresh = how.open(tuple(text), None)
            again = await fresh.propose(text[-1], len(text), Budget(5, 5), Rng.of(n))
            assert again.token == draft.token
            verdict = Verdict(tuple(range(1, 1 + keep)), (draft.token[-1] + 1) % 6)
            guess.learn(
                draft, await small.open(tuple(text)).score(draft, Want(base=Reads.ROW)), verdict
            )
            text.extend([*draft.token[1 : 1 + keep], verdict.bonus])

    run([rounds()])


def test_the_small_model_makes_fewer_passes_than_tokens():
    small = greedy(toy(5, 8, eos=-1, cost=0.1))
    decoder = Speculative(
        greedy(toy(5, 8, eos=-1)), Hierarchical(small, Lookup(), Match(), 4), Exact(), Fixed(6)
    )
    scheduler = Scheduler()
    task = scheduler.submit(answer_one(decoder, Request((0, 1, 2), 120)))
    while scheduler.step():
        pass
    use = task.usage[small.target.network]
    assert use.passes < 0.7 * task.result.stats.drafted


def test_a_confident_chain_ends_with_the_first_weak_token():
    for seed in range(10):
        draft = propose(
            Hierarchical(toy(5, 6), Recycling(2, 4), Match()),
            (0, 1, 2),
            Confidence(0.3, 6).budget(None),
            seed,
        )
        q = [float(law[x].exp()) for law, x in zip(draft.law[1:], draft.token[1:], strict=True)]
        assert all(x >= 0.3 for x in q[:-1]) and (q[-1] < 0.3 or len(q) == 6)


def test_greedy_tokens_are_weighed_where_that_is_asked():
    small = toy(5, 6)
    graded = propose(
        Hierarchical(greedy(small), Recycling(2, 4), Match()),
        (0, 1, 2),
        Confidence(0.0, 4).budget(None),
    )
    chain = run(
        [
            Chain().grow(
                greedy(small).open((0, 1, 2)), 2, 3, Confidence(0.0, 4).budget(None), Rng.of(0)
            )
        ]
    )[0]
    assert graded.token == chain.token and graded.chance == pytest.approx(chain.chance)


def test_any_inner_drafter():
    check_drafter(Hierarchical(toy(91, cost=0.1), INNER["model"], Exact(), 2, 2))


class Wrong(Hierarchical):
    """Nested with a fault in its bookkeeping."""

    def open(self, prompt, session):
        guess = super().open(prompt, session)
        small, learn = guess._small, guess.learn

        def broken(draft, scores, verdict):
            rewind, small.rewind = small.rewind, lambda n: None
            learn(draft, scores, verdict)
            small.rewind = rewind

        guess.learn = broken
        return guess


def test_a_small_model_that_forgets_to_rewind_is_caught():
    """The law survives that (drafts may be anything that is drawn as it says); the draft's own law does not."""
    how, prompt = Wrong(toy(5, 6, eos=-1), Nothing(), Match(), 0), (0, 1, 2)
    guess = how.open(prompt, None)

    async def rounds():
        draft = await guess.propose(2, 3, Budget(4, 4), Rng.of(0))
        guess.learn(draft, None, Verdict((1,), 3))
        return await guess.propose(3, 5, Budget(4, 4), Rng.of(1)), draft.token[1]

    draft, first = run([rounds()])[0]
    guess = Hierarchical(toy(5, 6, eos=-1), Nothing(), Match(), 0).open((0, 1, 2, first, 3), None)
    fresh = run([guess.propose(3, 5, Budget(4, 4), Rng.of(1))])[0]
    assert not draft.law[1].equal(fresh.law[1])


@pytest.mark.parametrize("field, value, most", [("depth", 65, 64), ("inner_nodes", -1, 256)])
def test_one_clear_sentence(field, value, most):
    with pytest.raises(ValueError, match=f"{field} is {value}: it must lie in 0 to {most}"):
        Hierarchical(toy(1), Nothing(), Match(), **{field: value})


def test_an_empty_budget_proposes_nothing():
    assert len(propose(Hierarchical(toy(1), Nothing(), Match()), (0, 1), Budget(0, 0))) == 1
