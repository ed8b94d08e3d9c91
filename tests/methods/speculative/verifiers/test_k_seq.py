"""k-SEQ: exact for any draws, and as good as was proved."""

import math
from itertools import combinations, product

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.enumerate import enumerate_executions
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.sequences import SequencesTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.k_seq import (
    KSeqVerifier,
    any_success_chance,
    best_acceptance,
    k_trial_acceptance,
    k_trial_residual,
    smallest_rho,
)


def pairs(n, size=4):
    """Random p and q: like Dirichlet draws, some with empty entries, some nearly equal, some without a common token."""
    g = torch.Generator().manual_seed(7)
    for i in range(n):
        p, q = (torch.rand(size, generator=g, dtype=torch.float64).log().neg() for _ in range(2))
        if i % 4 == 1:
            p[i % size] = q[(i + 1) % size] = 0.0
        if i % 4 == 2:
            q = p + 1e-9 * q
        if i % 16 == 3:
            p[:2] = 0.0
            q[2:] = 0.0
        yield p / p.sum(), q / q.sum()


def trial(p, q, k):
    """By enumeration over all k-tuples and outcomes of the tests: (output law, chance that a candidate is accepted)."""
    rho = smallest_rho(p, q, k)
    left, out, hit = k_trial_residual(p, q, k, rho), torch.zeros_like(p), 0.0
    for tuple_ in product(range(len(p)), repeat=k):
        weight = math.prod(float(q[x]) for x in tuple_)
        for x in tuple_:
            a = min(1.0, float(p[x]) / (rho * float(q[x]))) if q[x] > 0 else 0.0
            out[x] += weight * a
            hit += weight * a
            weight *= 1 - a
        out += weight * left
    return out, hit


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_output_law_is_p(k):
    for p, q in pairs(200):
        out, hit = trial(p, q, k)
        assert float((out - p).abs().max()) < 1e-11
        assert hit == pytest.approx(k_trial_acceptance(p, q, k), abs=1e-11)


def optimum(p, q, k):
    """The linear program's value by max-flow min-cut: the least over all sets of tokens, all of them looked at."""
    return min(
        float(p[list(h)].sum()) + 1 - float(q[list(h)].sum()) ** k
        for n in range(len(p) + 1)
        for h in combinations(range(len(p)), n)
    )


def flow(p, q, k, rounds=400):
    """A lower end for the same from below: how much of the tuples' mass can be given to their own tokens within p, by
    augmenting paths (Ford and Fulkerson)."""
    supply = [math.prod(float(q[x]) for x in t) for t in product(range(len(p)), repeat=k)]
    tuples, room = list(product(range(len(p)), repeat=k)), p.tolist()
    sent = [[0.0] * len(p) for _ in tuples]
    for _ in range(rounds):
        start = next(
            (i for i, s in enumerate(supply) if s > 1e-13 and _path(i, tuples, sent, room)), None
        )
        if start is None:
            break
        path = _path(start, tuples, sent, room)
        amount = min(
            [supply[start], room[path[-1]], *[sent[t][x] for x, t in zip(path[1::2], path[2::2])]]
        )
        supply[start] -= amount
        room[path[-1]] -= amount
        at = start
        for x, t in zip(path[1::2], [*path[2::2], None]):
            sent[at][x] += amount
            if t is not None:
                sent[t][x] -= amount
                at = t
    return sum(map(sum, sent))


def _path(start, tuples, sent, room):
    """From a tuple to a token with room: [tuple, token, tuple, token, ..., token]."""
    queue, seen = [[start]], {("t", start)}
    while queue:
        path = queue.pop(0)
        for x in set(tuples[path[-1]]):
            if ("x", x) in seen:
                continue
            seen.add(("x", x))
            if room[x] > 1e-13:
                return [*path, x]
            for t, row in enumerate(sent):
                if row[x] > 1e-13 and ("t", t) not in seen:
                    seen.add(("t", t))
                    queue.append([*path, x, t])
    return None


def test_the_optimum_is_the_linear_programs():
    for p, q in pairs(24, 3):
        for k in (2, 3):
            assert best_acceptance(p, q, k) == pytest.approx(optimum(p, q, k), abs=1e-12)
        assert flow(p, q, 2) == pytest.approx(optimum(p, q, 2), abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_acceptance_is_as_good_as_was_proved(k):
    for p, q in pairs(200):
        got, best = k_trial_acceptance(p, q, k), optimum(p, q, k)
        assert (1 - (1 - 1 / k) ** k) * best - 1e-9 <= got <= best + 1e-9
        assert (
            float(torch.minimum(p, q).sum()) - 1e-9
            <= got
            <= float(torch.minimum(p, 1 - (1 - q) ** k).sum()) + 1e-9
        )
        assert k == 1 or got >= k_trial_acceptance(p, q, k - 1) - 1e-9


@pytest.mark.parametrize("k", [1, 2, 5, 64])
def test_factor_is_the_least_that_keeps_within_p(k):
    for p, q in pairs(80, 6):
        rho = smallest_rho(p, q, k)
        assert 1.0 <= rho <= k

        def too_much(r, p=p, q=q):
            beta = float(torch.minimum(q, p / r).sum())
            return any_success_chance(min(beta, 1.0), k) - r * beta

        assert too_much(rho) <= 1e-14
        assert rho == 1.0 or too_much(rho * (1 - 1e-9)) > -1e-12
        left = p - torch.minimum(q, p / rho) * (
            any_success_chance(beta, k) / beta
            if (beta := float(torch.minimum(q, p / rho).sum()))
            else 0
        )
        assert float(left.min()) > -1e-12


def test_equal_laws_are_always_accepted_and_disjoint_ones_never():
    p = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    other = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    assert k_trial_acceptance(p, p, 3) == pytest.approx(1.0) and smallest_rho(p, p, 3) == 1.0
    assert k_trial_acceptance(p, other, 3) == 0.0 and k_trial_residual(
        p, other, 3, smallest_rho(p, other, 3)
    ).equal(p)


class Fixed_:
    """Scores of one law everywhere."""

    def __init__(self, logp_V):
        self.logp_V = logp_V

    def certain_token(self, i):
        return None

    def logprob_row(self, i):
        return self.logp_V


def test_one_candidate_is_speculative_sampling_decision_by_decision():
    for seed in range(60):
        target, draft = toy_law(seed % 9, 6), toy_law(seed % 7 + 20, 6, cost=0.1)
        request = Request((0, 1, 2), max_tokens=20, seed=seed, ignore_eos=True)
        drafter = ModelDrafter(draft, ChainTree())
        a, b = (
            run_coroutines(
                [answer_one(SpeculativeDecoder(target, drafter, v, FixedPolicy(3)), request)]
            )[0]
            for v in (KSeqVerifier(), ExactVerifier())
        )
        assert a == b


def test_a_rejected_token_may_come_back_and_its_tree_is_followed():
    """Two equal draws: what is left of p has their token again, and the first of them leads on."""
    p = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    q = torch.tensor([1.0, 0.0], dtype=torch.float64).log()
    draft = Draft(
        (0, 0, 0, 1),
        (-1, 0, 0, 1),
        (DrawKind.CERTAIN, *[DrawKind.INDEPENDENT] * 2, DrawKind.CERTAIN),
        (None, q, q, None),
    )
    found = {}
    for verdict, weight in enumerate_executions(
        lambda rng: KSeqVerifier().verify_draft(draft, Fixed_(p), rng, 0)
    ):
        found[verdict.path, verdict.bonus] = found.get((verdict.path, verdict.bonus), 0.0) + weight
    assert found == pytest.approx(
        {((), 1): 0.5, ((1,), 0): 0.25, ((1, 3), 0): 0.125, ((1, 3), 1): 0.125}
    )


# the tree of sequences


def grow(tree, target, budget, rng):
    return run_coroutines([tree.grow_tree(target.open_session((0, 1)), 1, 2, budget, rng)])[0]


def test_sequences_share_what_they_agree_on():
    seen = set()
    for seed in range(40):
        draft = grow(SequencesTree(3), toy_law(4), DraftBudget(2, 6), Rng.of_choice(seed))
        assert len(draft.children[0]) == 3 and draft.depth.count(2) == 3
        for node in range(1, len(draft)):
            first = draft.child_of(draft.parent[node], draft.token[node])
            twins = sum(
                draft.token[c] == draft.token[node] for c in draft.children[draft.parent[node]]
            )
            assert draft.depth[node] == 2 or len(draft.children[node]) == (
                twins if node == first else 0
            )
        seen.add(len({draft.token[c] for c in draft.children[0]}))
    assert seen == {1, 2, 3}


def test_one_sequence_is_a_chain():
    for seed in range(6):
        a = grow(SequencesTree(1), toy_law(4, 5), DraftBudget(4, 4), Rng.of_choice(seed))
        assert a.parent == (-1, 0, 1, 2, 3)
    laws = [{}, {}]
    for law, tree in zip(laws, (SequencesTree(1), ChainTree())):
        for draft, p in enumerate_executions(
            lambda rng, t=tree: grow(t, toy_law(4), DraftBudget(3, 3), rng)
        ):
            law[draft.token] = law.get(draft.token, 0.0) + p
    assert laws[0] == pytest.approx(laws[1])


def test_a_greedy_draft_gives_one_sequence():
    draft = grow(
        SequencesTree(4),
        ShapedTarget(toy_law(4, 5), GreedyRule()),
        DraftBudget(3, 12),
        Rng.of_choice(0),
    )
    assert draft.parent == (-1, 0, 1, 2)


@pytest.mark.parametrize(
    "tree, budget",
    [
        (SequencesTree(2), FixedPolicy(2, 4)),
        (SequencesTree(2), FixedPolicy(2, 3)),
        (SequencesTree(3), FixedPolicy(1, 3)),
        (StaticTree((2, 2), replace=True), FixedPolicy(2, 6)),
    ],
    ids=str,
)
def test_the_law_stays(record_counts, tree, budget):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(t, ModelDrafter(d, tree), KSeqVerifier(), budget),
            laws=3,
            length=2,
        )
    )


@pytest.mark.slow
def test_the_law_of_four_tokens_stays(record_counts):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t, ModelDrafter(d, SequencesTree(3)), KSeqVerifier(), FixedPolicy(1, 3)
            ),
            laws=4,
            length=2,
        )
    )


@pytest.mark.slow
def test_three_tokens_of_two_sequences(record_counts):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t, ModelDrafter(d, SequencesTree(2)), KSeqVerifier(), FixedPolicy(2, 4)
            ),
            laws=1,
            length=3,
            shapings=["plain"],
        )
    )


def test_count_is_checked():
    with pytest.raises(ValueError, match="count is 0: it must lie in 1 to 64"):
        SequencesTree(0)
