"""Hierarchical drafting: two levels, both exact."""

import pytest

import polydec
from polydec.base.errors import MissingError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import Scheduler, run
from polydec.core.types import Draft, Draw, Reads, Want
from polydec.lab.testing.check_decoder import check_decoder, check_law
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy
from polydec.laws.shapers.greedy import Greedy
from polydec.laws.targets.shaped import Shaped
from polydec.methods.speculative.drafters.eagle import FromEagle
from polydec.methods.speculative.drafters.hierarchical import Hierarchical
from polydec.methods.speculative.drafters.lookup import Lookup
from polydec.methods.speculative.drafters.model import FromModel
from polydec.methods.speculative.drafters.nothing import Nothing
from polydec.methods.speculative.drafters.recycling import Recycling
from polydec.methods.speculative.loop.speculative import Speculative
from polydec.methods.speculative.loop.types import Budget, Verdict
from polydec.methods.speculative.policies.confidence import Confidence
from polydec.methods.speculative.policies.fixed import Fixed
from polydec.methods.speculative.trees.best_first import BestFirst
from polydec.methods.speculative.trees.chain import Chain
from polydec.methods.speculative.trees.static import Static
from polydec.methods.speculative.verifiers.coupled import Coupled
from polydec.methods.speculative.verifiers.exact import Exact
from polydec.methods.speculative.verifiers.match import Match
from polydec.models.learned.kinds import eagle

INNER = {
    "nothing": Nothing(),
    "lookup": Lookup(),
    "recycling": Recycling(2, 4),
    "model": FromModel(toy(93, cost=0.01), Chain()),
    "tree": FromModel(toy(93, cost=0.01), Static((2, 1))),
    "eagle": FromEagle(eagle.examples(toy(1).vocab, 4, 4)[0], BestFirst(2)),
}


def layer(size):
    """EAGLE's trees for a toy of so many tokens, which ends nowhere."""
    return FromEagle(eagle.examples(toy(1, size, eos=-1).vocab, 4, 4)[0], BestFirst(2))


def greedy(target):
    return Shaped(target, Greedy())


def propose(drafter, prompt, budget=None, seed=0):
    guess = drafter.open(prompt, None)
    return run([guess.propose(prompt[-1], len(prompt), budget or Budget(5, 5), Rng.of(seed))])[0]


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("verifier", [Match(), Exact(), Coupled()], ids=lambda v: type(v).__name__)
def test_the_chain_has_the_small_models_law(record_counts, name, verifier):
    """Under a target that is the small model itself nothing is ever rejected, and the text has its law."""
    record_counts(
        check_law(
            lambda t, d: Speculative(
                t, Hierarchical(d, INNER[name], verifier, 2, 4), Exact(), Fixed(2)
            ),
            laws=3,
            length=2,
            shapings=("plain",),
        )
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


def test_the_law_stays_over_three_tokens_and_with_shapers(record_counts):
    record_counts(
        check_law(
            lambda t, d: Speculative(
                t, Hierarchical(d, Recycling(2, 3), Match(), 2, 3), Exact(), Fixed(3)
            ),
            laws=2,
            length=3,
        )
    )


def test_it_may_stop_early(record_counts):
    def make(target, draft):
        return Speculative(
            target, Hierarchical(draft, Recycling(2, 3), Match(), 2, 3), Exact(), Confidence(0.5, 4)
        )

    record_counts(check_decoder(make, laws=2, length=2))


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


def chain_by_hand(small, inner, text, length, least, levels, nodes):
    """The published loop, greedy, with nothing kept: the small model's chain behind a text, and the inner trees."""
    chain, trees = [], []
    while len(chain) < least:
        here = (*text, *chain)
        guess = inner.open(here, small.open(here))
        size = Budget(min(levels, length - len(chain) - 1), nodes)

        async def one(here=here, guess=guess, size=size):
            scores = await guess.session.prefill(Want(law=Reads.NOTHING, hidden=True, prompt=True))
            guess.learn(
                Draft.chain(here[0], here[1:-1]),
                scores,
                Verdict(tuple(range(1, len(here) - 1)), here[-1], prompt=True),
            )
            tree = await guess.propose(here[-1], len(here), size, Rng.of(0))
            session = small.open(here)
            return tree, Match().verify(tree, await session.score(tree, Want()), Rng.of(0), 0)

        tree, verdict = run([one()])[0]
        trees.append(tree.token)
        chain += verdict.tokens(tree)
    return chain, trees


@pytest.mark.parametrize("least", [None, 1, 3])
def test_an_eagle_layer_reads_the_small_models_states_alone(least):
    """Chain and inner trees are those of the published loop, run anew from the whole text. Behind a chain that was accepted
    whole the small model first writes one token without a tree, as its last token and the next root have no states yet."""
    size, length, levels, nodes = 8, 6, 3, 4
    small, inner = greedy(toy(5, size, eos=-1, cost=0.1)), layer(size)
    how = Hierarchical(small, inner, Match(), levels, nodes, least)
    text = [0, 1, 2, 0, 1]
    guess = how.open(tuple(text), None)
    assert guess.want == Want(law=Reads.NOTHING)  # of the target's states it wants none

    async def propose(n):
        return await guess.propose(text[-1], len(text), Budget(length, length), Rng.of(n))

    whole = False
    for n, keep in enumerate((9, 0, 2, 9, 9, 1, 9, 0)):
        draft = run([propose(n)])[0]
        seen = [s.draft.token for s in guess._steps]
        first = []
        if whole:  # one plain step
            at = tuple(text)
            first = list(chain_by_hand(small, inner, at, 1, 1, 0, 0)[0])
            assert seen.pop(0) == (text[-1],)
        rest, trees = chain_by_hand(
            small,
            inner,
            (*text, *first),
            length - len(first),
            (least or length) - len(first),
            levels,
            nodes,
        )
        assert list(draft.token[1:]) == first + rest and seen == trees
        keep = min(keep, len(draft) - 1)
        whole = keep == len(draft) - 1
        bonus = (draft.token[min(keep + 1, len(draft) - 1)] + 1) % size
        twin = guess.fork(None)
        for one in (guess, twin):
            one.learn(draft, None, Verdict(tuple(range(1, 1 + keep)), bonus))  # no row is looked at
        guess.close()
        guess = twin
        text += [*draft.token[1 : 1 + keep], bonus]


def test_an_eagle_layer_changes_no_token():
    size = 8
    small = greedy(toy(5, size, eos=-1, cost=0.1))
    for seed in range(5):
        prompt = (0, 1, seed % size)
        chain = propose(Hierarchical(small, layer(size), Match(), 3, 8), prompt, Budget(6, 6))
        plain = propose(Hierarchical(small, Nothing(), Match(), 0), prompt, Budget(6, 6))
        assert chain.token == plain.token


def test_a_layer_that_was_trained_for_the_draft_is_loaded_beside_it(tmp_path):
    """It reads states of the draft's width, which is not the target's; without that draft it fits nothing."""
    lm = polydec.load("zoo:tiny", draft="zoo:tiny-draft")
    eagle.save(tmp_path, eagle.examples(lm.draft.lm.vocab, 48, 48)[0], {})
    given = polydec.load("zoo:tiny", draft="zoo:tiny-draft", trained=[str(tmp_path)])
    how = {"method": "specmquant", "options": {"eagle": True}}
    plain, ours = (polydec.generate(given, "One day", max_tokens=12, **more) for more in ({}, how))
    assert ours.choices[0].text == plain.choices[0].text
    with pytest.raises(ValueError, match="trained for states of width 48: this target's have 192"):
        polydec.load("zoo:tiny", draft="none", trained=[str(tmp_path)])


def test_specmquant_takes_the_layer_that_was_trained_for_the_draft():
    target, small = toy(1, 5, eos=-1), toy(2, 5, eos=-1, cost=0.1)
    own = eagle.examples(small.vocab, 4, 4)[0]
    other = eagle.examples(toy(1, 6).vocab, 4, 4)[0]  # for whoever has six tokens
    decoder, _ = build(
        "specmquant", target, small, {"eagle": True, "least": 2}, artefacts=(other, own)
    )
    assert decoder.drafter.inner.weights is own and decoder.drafter.least == 2
    assert build("specmquant", target, small)[1]["eagle"] is False
    with pytest.raises(MissingError, match="there is no eagle: name one"):
        build("specmquant", target, small, {"eagle": True})


@pytest.mark.parametrize("least", [1, 2, 4])
def test_a_chain_may_end_before_it_is_longest(record_counts, least):
    """As published: it grows while it is shorter than `least`, and keeps what the last tree gave beyond that."""
    small = greedy(toy(5, 6, eos=-1))
    lengths = set()
    for seed in range(6):
        prompt = (0, 1, 2, seed % 6, 0, 1, 2)
        chain = propose(
            Hierarchical(small, Lookup(2, 1), Match(), 3, 3, least), prompt, Budget(8, 8)
        )
        whole = propose(Hierarchical(small, Lookup(2, 1), Match(), 3, 3), prompt, Budget(8, 8))
        assert chain.token == whole.token[: len(chain)] and least < len(chain) <= least + 4
        lengths.add(len(chain) - 1)
    record_counts(
        check_law(
            lambda t, d: Speculative(
                t, Hierarchical(d, Recycling(2, 3), Match(), 2, 3, least), Exact(), Fixed(3)
            ),
            laws=2,
            length=3,
            shapings=("plain",),
        )
    )


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


def test_any_inner_drafter(record_counts):
    record_counts(check_drafter(Hierarchical(toy(91, cost=0.1), INNER["model"], Exact(), 2, 2)))
    record_counts(check_drafter(Hierarchical(toy(91, cost=0.1), INNER["eagle"], Match(), 2, 2)))


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


def test_a_chain_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="least is 0: it must lie in 1 to 64"):
        Hierarchical(toy(1), Nothing(), Match(), least=0)


def test_an_empty_budget_proposes_nothing():
    assert len(propose(Hierarchical(toy(1), Nothing(), Match()), (0, 1), Budget(0, 0))) == 1
