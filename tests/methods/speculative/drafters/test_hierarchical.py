"""Hierarchical drafting: two levels, both exact."""

import pytest

import polydec
from polydec.base.errors import MissingError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.lab.testing.check_decoder import check_decoder, check_law
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.hierarchical import HierarchicalDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.confidence import ConfidencePolicy
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.coupled import CoupledVerifier
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import eagle

INNER = {
    "nothing": NothingDrafter(),
    "lookup": LookupDrafter(),
    "recycling": RecyclingDrafter(2, 4),
    "model": ModelDrafter(toy_law(93, cost=0.01), ChainTree()),
    "tree": ModelDrafter(toy_law(93, cost=0.01), StaticTree((2, 1))),
    "eagle": EagleDrafter(eagle.examples(toy_law(1).vocab, 4, 4)[0], BestFirstTree(2)),
}


def layer(size):
    """EAGLE's trees for a toy of so many tokens, which ends nowhere."""
    return EagleDrafter(eagle.examples(toy_law(1, size, eos=-1).vocab, 4, 4)[0], BestFirstTree(2))


def greedy(target):
    return ShapedTarget(target, GreedyRule())


def propose(drafter, prompt, budget=None, seed=0):
    guess = drafter.open_guess(prompt, None)
    return run_coroutines(
        [
            guess.propose_draft(
                prompt[-1], len(prompt), budget or DraftBudget(5, 5), Rng.of_choice(seed)
            )
        ]
    )[0]


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize(
    "verifier",
    [MatchVerifier(), ExactVerifier(), CoupledVerifier()],
    ids=lambda v: type(v).__name__,
)
def test_the_chain_has_the_small_models_law(record_counts, name, verifier):
    """Under a target that is the small model itself nothing is ever rejected, and the text has its law."""
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t,
                HierarchicalDrafter(d, INNER[name], verifier, 2, 4),
                ExactVerifier(),
                FixedPolicy(2),
            ),
            laws=3,
            length=2,
            shapings=("plain",),
        )
    )
    small = toy_law(3, 3, eos=-1)
    for seed in range(4):
        result = run_coroutines(
            [
                answer_one(
                    SpeculativeDecoder(
                        small,
                        HierarchicalDrafter(small, INNER[name], verifier),
                        ExactVerifier(),
                        FixedPolicy(4),
                    ),
                    Request((0, 1, 0), 30, seed=seed),
                )
            ]
        )[0]
        assert result.stats.accepted == result.stats.drafted > 0


def test_the_law_stays_over_three_tokens_and_with_shapers(record_counts):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t,
                HierarchicalDrafter(d, RecyclingDrafter(2, 3), MatchVerifier(), 2, 3),
                ExactVerifier(),
                FixedPolicy(3),
            ),
            laws=2,
            length=3,
        )
    )


def test_it_may_stop_early(record_counts):
    def make(target, draft):
        return SpeculativeDecoder(
            target,
            HierarchicalDrafter(draft, RecyclingDrafter(2, 3), MatchVerifier(), 2, 3),
            ExactVerifier(),
            ConfidencePolicy(0.5, 4),
        )

    record_counts(check_decoder(make, laws=2, length=2))


@pytest.mark.parametrize("name", ["lookup", "recycling"])
def test_greedy_chains_are_the_small_models_greedy_text(name):
    for seed in range(6):
        small, prompt = greedy(toy_law(seed, 6, eos=-1)), (0, 1, 2, 3, 0, 1)
        want = run_coroutines(
            [
                answer_one(
                    SpeculativeDecoder(small, NothingDrafter(), MatchVerifier(), FixedPolicy(0)),
                    Request(prompt, 5),
                )
            ]
        )[0].token_ids
        draft = propose(HierarchicalDrafter(small, INNER[name], MatchVerifier()), prompt)
        assert draft.token[1:] == want and set(draft.draw) == {DrawKind.CERTAIN}


def test_without_inner_drafts_it_is_a_chain():
    for seed in range(4):
        requests, target, small = (
            Request((0, 1, 2), 24, seed=seed),
            toy_law(1, 5, eos=-1),
            greedy(toy_law(2, 5, eos=-1, cost=0.1)),
        )
        a, b = (
            run_coroutines(
                [
                    answer_one(
                        SpeculativeDecoder(greedy(target), d, ExactVerifier(), FixedPolicy(3)),
                        requests,
                    )
                ]
            )[0]
            for d in (
                HierarchicalDrafter(small, RecyclingDrafter(2, 4), MatchVerifier(), 0),
                ModelDrafter(small, ChainTree()),
            )
        )
        assert a == b


def test_what_a_shaper_sees_of_the_small_model_is_the_true_text():
    """After every round the small session stands where a fresh one would, and so does the inner drafter."""
    small = toy_law(5, 6, eos=-1, cost=0.1)
    how = HierarchicalDrafter(small, LookupDrafter(2, 1), MatchVerifier(), 3, 3)
    prompt, text = (0, 1, 2, 0, 1), [0, 1, 2, 0, 1]
    guess = how.open_guess(prompt, None)

    async def rounds():
        for n, keep in enumerate((5, 0, 2, 1, 5, 5, 3, 0)):
            draft = await guess.propose_draft(
                text[-1], len(text), DraftBudget(5, 5), Rng.of_choice(n)
            )
            assert len(draft) == 6
            fresh = how.open_guess(tuple(text), None)
            again = await fresh.propose_draft(
                text[-1], len(text), DraftBudget(5, 5), Rng.of_choice(n)
            )
            assert again.token == draft.token
            verdict = Verdict(tuple(range(1, 1 + keep)), (draft.token[-1] + 1) % 6)
            guess.learn_round(
                draft,
                await small.open_session(tuple(text)).score_draft(
                    draft, ScoreRequest(base=RowDetail.ROW)
                ),
                verdict,
            )
            text.extend([*draft.token[1 : 1 + keep], verdict.bonus])

    run_coroutines([rounds()])


def chain_by_hand(small, inner, text, length, least, levels, nodes):
    """The published loop, greedy, with nothing kept: the small model's chain behind a text, and the inner trees."""
    chain, trees = [], []
    while len(chain) < least:
        here = (*text, *chain)
        guess = inner.open_guess(here, small.open_session(here))
        size = DraftBudget(min(levels, length - len(chain) - 1), nodes)

        async def one(here=here, guess=guess, size=size):
            scores = await guess.session.prefill_prompt(
                ScoreRequest(law=RowDetail.NOTHING, hidden=True, prompt=True)
            )
            guess.learn_round(
                Draft.chain_draft(here[0], here[1:-1]),
                scores,
                Verdict(tuple(range(1, len(here) - 1)), here[-1], prompt=True),
            )
            tree = await guess.propose_draft(here[-1], len(here), size, Rng.of_choice(0))
            session = small.open_session(here)
            return tree, MatchVerifier().verify_draft(
                tree, await session.score_draft(tree, ScoreRequest()), Rng.of_choice(0), 0
            )

        tree, verdict = run_coroutines([one()])[0]
        trees.append(tree.token)
        chain += verdict.written_tokens(tree)
    return chain, trees


@pytest.mark.parametrize("least", [None, 1, 3])
def test_an_eagle_layer_reads_the_small_models_states_alone(least):
    """Chain and inner trees are those of the published loop, run anew from the whole text. Behind a chain that was accepted
    whole the small model first writes one token without a tree, as its last token and the next root have no states yet."""
    size, length, levels, nodes = 8, 6, 3, 4
    small, inner = greedy(toy_law(5, size, eos=-1, cost=0.1)), layer(size)
    how = HierarchicalDrafter(small, inner, MatchVerifier(), levels, nodes, least)
    text = [0, 1, 2, 0, 1]
    guess = how.open_guess(tuple(text), None)
    assert guess.want == ScoreRequest(law=RowDetail.NOTHING)  # of the target's states it wants none

    async def propose(n):
        return await guess.propose_draft(
            text[-1], len(text), DraftBudget(length, length), Rng.of_choice(n)
        )

    whole = False
    for n, keep in enumerate((9, 0, 2, 9, 9, 1, 9, 0)):
        draft = run_coroutines([propose(n)])[0]
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
        twin = guess.fork_guess(None)
        for one in (guess, twin):
            one.learn_round(
                draft, None, Verdict(tuple(range(1, 1 + keep)), bonus)
            )  # no row is looked at
        guess.close()
        guess = twin
        text += [*draft.token[1 : 1 + keep], bonus]


def test_an_eagle_layer_changes_no_token():
    size = 8
    small = greedy(toy_law(5, size, eos=-1, cost=0.1))
    for seed in range(5):
        prompt = (0, 1, seed % size)
        chain = propose(
            HierarchicalDrafter(small, layer(size), MatchVerifier(), 3, 8),
            prompt,
            DraftBudget(6, 6),
        )
        plain = propose(
            HierarchicalDrafter(small, NothingDrafter(), MatchVerifier(), 0),
            prompt,
            DraftBudget(6, 6),
        )
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
    target, small = toy_law(1, 5, eos=-1), toy_law(2, 5, eos=-1, cost=0.1)
    own = eagle.examples(small.vocab, 4, 4)[0]
    other = eagle.examples(toy_law(1, 6).vocab, 4, 4)[0]  # for whoever has six tokens
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
    small = greedy(toy_law(5, 6, eos=-1))
    lengths = set()
    for seed in range(6):
        prompt = (0, 1, 2, seed % 6, 0, 1, 2)
        chain = propose(
            HierarchicalDrafter(small, LookupDrafter(2, 1), MatchVerifier(), 3, 3, least),
            prompt,
            DraftBudget(8, 8),
        )
        whole = propose(
            HierarchicalDrafter(small, LookupDrafter(2, 1), MatchVerifier(), 3, 3),
            prompt,
            DraftBudget(8, 8),
        )
        assert chain.token == whole.token[: len(chain)] and least < len(chain) <= least + 4
        lengths.add(len(chain) - 1)
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t,
                HierarchicalDrafter(d, RecyclingDrafter(2, 3), MatchVerifier(), 2, 3, least),
                ExactVerifier(),
                FixedPolicy(3),
            ),
            laws=2,
            length=3,
            shapings=("plain",),
        )
    )


def test_the_small_model_makes_fewer_passes_than_tokens():
    small = greedy(toy_law(5, 8, eos=-1, cost=0.1))
    decoder = SpeculativeDecoder(
        greedy(toy_law(5, 8, eos=-1)),
        HierarchicalDrafter(small, LookupDrafter(), MatchVerifier(), 4),
        ExactVerifier(),
        FixedPolicy(6),
    )
    scheduler = Scheduler()
    task = scheduler.submit_coroutine(answer_one(decoder, Request((0, 1, 2), 120)))
    while scheduler.step():
        pass
    use = task.usage[small.target.network]
    assert use.passes < 0.7 * task.result.stats.drafted


def test_a_confident_chain_ends_with_the_first_weak_token():
    for seed in range(10):
        draft = propose(
            HierarchicalDrafter(toy_law(5, 6), RecyclingDrafter(2, 4), MatchVerifier()),
            (0, 1, 2),
            ConfidencePolicy(0.3, 6).draft_budget(None),
            seed,
        )
        q = [float(law[x].exp()) for law, x in zip(draft.law[1:], draft.token[1:], strict=True)]
        assert all(x >= 0.3 for x in q[:-1]) and (q[-1] < 0.3 or len(q) == 6)


def test_greedy_tokens_are_weighed_where_that_is_asked():
    small = toy_law(5, 6)
    graded = propose(
        HierarchicalDrafter(greedy(small), RecyclingDrafter(2, 4), MatchVerifier()),
        (0, 1, 2),
        ConfidencePolicy(0.0, 4).draft_budget(None),
    )
    chain = run_coroutines(
        [
            ChainTree().grow_tree(
                greedy(small).open_session((0, 1, 2)),
                2,
                3,
                ConfidencePolicy(0.0, 4).draft_budget(None),
                Rng.of_choice(0),
            )
        ]
    )[0]
    assert graded.token == chain.token and graded.chance == pytest.approx(chain.chance)


def test_any_inner_drafter(record_counts):
    record_counts(
        check_drafter(
            HierarchicalDrafter(toy_law(91, cost=0.1), INNER["model"], ExactVerifier(), 2, 2)
        )
    )
    record_counts(
        check_drafter(
            HierarchicalDrafter(toy_law(91, cost=0.1), INNER["eagle"], MatchVerifier(), 2, 2)
        )
    )


class Wrong(HierarchicalDrafter):
    """Nested with a fault in its bookkeeping."""

    def open_guess(self, prompt, session):
        guess = super().open_guess(prompt, session)
        small, learn = guess._small, guess.learn_round

        def broken(draft, scores, verdict):
            rewind, small.rewind_tokens = small.rewind_tokens, lambda n: None
            learn(draft, scores, verdict)
            small.rewind_tokens = rewind

        guess.learn_round = broken
        return guess


def test_a_small_model_that_forgets_to_rewind_is_caught():
    """The law survives that (drafts may be anything that is drawn as it says); the draft's own law does not."""
    how, prompt = Wrong(toy_law(5, 6, eos=-1), NothingDrafter(), MatchVerifier(), 0), (0, 1, 2)
    guess = how.open_guess(prompt, None)

    async def rounds():
        draft = await guess.propose_draft(2, 3, DraftBudget(4, 4), Rng.of_choice(0))
        guess.learn_round(draft, None, Verdict((1,), 3))
        return await guess.propose_draft(3, 5, DraftBudget(4, 4), Rng.of_choice(1)), draft.token[1]

    draft, first = run_coroutines([rounds()])[0]
    guess = HierarchicalDrafter(
        toy_law(5, 6, eos=-1), NothingDrafter(), MatchVerifier(), 0
    ).open_guess((0, 1, 2, first, 3), None)
    fresh = run_coroutines([guess.propose_draft(3, 5, DraftBudget(4, 4), Rng.of_choice(1))])[0]
    assert not draft.law[1].equal(fresh.law[1])


@pytest.mark.parametrize("field, value, most", [("depth", 65, 64), ("inner_nodes", -1, 256)])
def test_one_clear_sentence(field, value, most):
    with pytest.raises(ValueError, match=f"{field} is {value}: it must lie in 0 to {most}"):
        HierarchicalDrafter(toy_law(1), NothingDrafter(), MatchVerifier(), **{field: value})


def test_a_chain_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="least is 0: it must lie in 1 to 64"):
        HierarchicalDrafter(toy_law(1), NothingDrafter(), MatchVerifier(), least=0)


def test_an_empty_budget_proposes_nothing():
    assert (
        len(
            propose(
                HierarchicalDrafter(toy_law(1), NothingDrafter(), MatchVerifier()),
                (0, 1),
                DraftBudget(0, 0),
            )
        )
        == 1
    )
