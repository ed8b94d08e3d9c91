"""Trees by state: the Markov chain of states, and what it says of a round."""

import random
from itertools import product

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics import state_trees
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.drafters.probes import ProbesDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds.probes import SoftProbes

RATES = ((0.5, 0.2, 0.1), (0.35, 0.15, 0.1), (0.25, 0.1, 0.05))


def by_hand(rates, made, rounds, seed):
    """Tokens a round of rounds that are drawn: one level after another a rank is right, as often as the rates say."""
    rng, state, tokens = random.Random(seed), 0, 0
    for _ in range(rounds):
        tree, path = made[state], ()
        while len(path) < state:
            u, rank = rng.random(), None
            for r, rate in enumerate(rates[len(path)]):
                if u < rate:
                    rank = r
                    break
                u -= rate
            if rank is None or (*path, rank) not in tree.paths:
                break
            path = (*path, rank)
        tokens += 1 + len(path)
        state = tree.probes[0 if not path else 1 + tree.paths.index(path)]
    return tokens / rounds


@pytest.mark.parametrize("limit", [3, 9, 20])
def test_the_markov_chain_says_how_many_tokens_a_round_gives(limit):
    made = state_trees.best_state_trees(RATES, limit)
    drawn = by_hand(RATES, made, 60_000, 1)
    assert state_trees.per_round(made) == pytest.approx(drawn, rel=0.02)


def test_trees_hold_what_the_paper_says():
    for limit in (1, 2, 5, 12, 30):
        made = state_trees.build_state_trees(RATES, limit, (4, 6, 8))
        for state, tree in enumerate(made):
            assert tree.rows <= limit and sum(tree.moves) == pytest.approx(1)
            assert all(len(path) <= state for path in tree.paths)
            assert {p[:-1] for p in tree.paths} <= {(), *tree.paths}
            assert len(tree.probes) == 1 + len(tree.paths)
    assert made[0].paths == () and made[0].probes == (3,) and made[0].moves == (0, 0, 0, 1)
    # in state 1 of two tokens: the root is last in 0.3 of the rounds, the tokens in 0.5 and 0.2
    one = state_trees.build_state_trees(RATES, 99, (2, 2, 2))[1]
    assert one.paths == ((0,), (1,)) and one.tokens == pytest.approx(1.7)
    assert one.moves == pytest.approx((0, 0, 0, 1))


def greedy_removal(tree_values, tokens, room, most):
    """The published rule, read word for word: all have all, then the least loss goes."""
    paths = sorted(tree_values, key=lambda p: (len(p), p))
    stop = {
        p: v - sum(w for q, w in tree_values.items() if q[:-1] == p and q)
        for p, v in tree_values.items()
    }
    have = dict.fromkeys(paths, most)
    while sum(have.values()) > room:
        loss = {p: stop[p] * (tokens[n] - tokens[n - 1]) for p, n in have.items() if n}
        have[min(loss, key=loss.get)] -= 1
    return tuple(have[p] for p in paths)


@pytest.mark.parametrize("limit", [4, 8, 13])
def test_probes_go_where_they_are_missed_least(limit):
    made = state_trees.build_state_trees(RATES, limit, (2, 3, 4))
    tokens = [tree.tokens for tree in made]
    for state, n in enumerate((0, 2, 3, 4)):
        values = state_trees.likeliest_path_chances(RATES, n, state)
        assert made[state].probes == greedy_removal(values, tokens, limit - n, 3)


def test_the_search_is_near_the_best_of_all_and_above_trees_of_one_size():
    limit = 7
    every = [
        state_trees.per_round(state_trees.build_state_trees(RATES, limit, nodes))
        for nodes in product(range(1, limit + 1), repeat=3)
    ]
    found = state_trees.per_round(state_trees.best_state_trees(RATES, limit))
    assert found >= 0.98 * max(every)
    assert found >= state_trees.per_round(
        state_trees.build_state_trees(RATES, limit, (limit // 2,) * 3)
    )


def test_dear_rows_make_small_trees():
    dear = PassCosts(rows_ms=tuple(1.0 + 0.6 * i for i in range(64)))
    cheap = PassCosts(rows_ms=(1.0,) * 64)
    small, large = (
        max(tree.rows for tree in state_trees.fastest_state_trees(RATES, 48, costs))
        for costs in (dear, cheap)
    )
    assert small <= 4 and large > 24


def drafter(vocab, rows, made):
    probes = SoftProbes(torch.arange(8.0).reshape(2, 4) % 3, None, (0, 0), vocab, RATES[:2])
    return ProbesDrafter(
        probes, RankedTree(((0,),)), rows, tuple((t, RankedTree(t.paths or ((0,),))) for t in made)
    )


def test_a_draft_is_the_tree_of_its_state(record_counts):
    """As many tokens and probes as the plan of the state has, and a text of the model's law."""
    target = ShapedTarget(toy_law(5, 6, eos=-1), GreedyRule())
    made = state_trees.best_state_trees(RATES[:2], 9)
    seen = []

    class Spy(ProbesDrafter):
        def open_guess(self, prompt, session):
            guess = super().open_guess(prompt, session)
            propose = guess.propose_draft

            async def spied(*a):
                state = 0 if guess.state_LEH is None else len(guess.state_LEH)
                draft = await propose(*a)
                seen.append((state, draft))
                return draft

            guess.propose_draft = spied
            return guess

    plain = drafter(toy_law(5, 6).vocab, 9, made)
    how = Spy(plain.probes, plain.tree, plain.rows, plain.by_state)
    decoder = SpeculativeDecoder(target, how, MatchVerifier(), FixedPolicy(64, 9))
    run_coroutines([answer_one(decoder, Request((0, 1), 60))])
    assert len({state for state, _ in seen}) > 1
    for state, draft in seen[:-4]:
        probe = draft.probe or (False,) * len(draft)
        assert probe.count(False) - 1 == len(made[state].paths)
        assert probe.count(True) == sum(made[state].probes)
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t, drafter(t.vocab, 5, made), MatchVerifier(), FixedPolicy(3, 5)
            ),
            laws=3,
            length=3,
            shapings=("plain",),
        )
    )


def test_the_options_of_ppd():
    probes = SoftProbes(torch.zeros(3, 4), None, (0, 0, 0), toy_law(1).vocab, RATES)

    def make(**options):
        options = {"cost_aware": False, **options}
        return build("ppd", toy_law(1), None, options, artefacts=(probes,))[0].drafter

    assert make().by_state == ()
    assert [t for t, _ in make(by_state=True).by_state] == list(
        state_trees.best_state_trees(RATES, 24)
    )
    assert [t for t, _ in make(hardware_aware=True, rows=16).by_state] == list(
        state_trees.fastest_state_trees(RATES, 16, PassCosts())
    )
