"""What each tree computes, and what it reduces to."""

import math
from collections import defaultdict
from itertools import permutations, product

import numpy as np
import pytest
import torch

from polydec.core.law import float64_probabilities
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.enumerate import enumerate_executions
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.best_slot import BestSlotTree
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.greedy_growth import GreedyGrowthTree
from polydec.methods.speculative.trees.nucleus import NucleusTree
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.trees.stochastic_beam import StochasticBeamTree
from polydec.methods.speculative.trees.widest import WidestTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier


def grow(tree, target, budget, rng):
    return run_coroutines([tree.grow_tree(target.open_session((0, 1)), 1, 2, budget, rng)])[0]


def paths(draft, depth=None):
    """The token paths of all nodes, or of those at one depth, in the draft's order."""
    return tuple(
        tuple(draft.token[j] for j in draft.path_to(i))
        for i in range(1, len(draft))
        if depth is None or draft.depth[i] == depth
    )


def laws(tree, target, budget):
    """Of each tree, as the paths of its nodes in order, its probability."""
    out = defaultdict(float)
    for draft, p in enumerate_executions(lambda rng: grow(tree, target, budget, rng)):
        out[paths(draft)] += p
    return dict(out)


def row(target, path):
    return float64_probabilities(
        run_coroutines(
            [target.open_session((0, 1)).score_draft(Draft.chain_draft(1, path), ScoreRequest())]
        )[0].logprob_row(len(path))
    ).numpy()


def path_law(target, size, depth):
    """The draft's probability of every path of this length."""
    return {
        path: math.prod(float(row(target, path[:i])[x]) for i, x in enumerate(path))
        for path in product(range(size), repeat=depth)
    }


# stochastic beam


@pytest.mark.parametrize("seed", range(3))
def test_a_beams_paths_are_drawn_without_replacement(seed):
    """The last level, in order, has the law of drawing whole paths one after another, each from what the others left."""
    target, got = toy_law(seed), defaultdict(float)
    q = path_law(target, 3, 2)
    for draft, p in enumerate_executions(
        lambda rng: grow(StochasticBeamTree(2), target, DraftBudget(2, 4), rng)
    ):
        got[paths(draft, 2)] += p
    want = {(a, b): q[a] * q[b] / (1 - q[a]) for a, b in permutations(q, 2)}
    assert sum(got.values()) == pytest.approx(1.0)
    for pair, p in got.items():
        assert p == pytest.approx(want[pair], abs=1e-12)


def kool(target, size, depth, width, runs, seed):
    """Stochastic beam search as it was published, with Gumbel noise conditioned on the parent's maximum."""
    dice, out = np.random.default_rng(seed), defaultdict(float)
    logq = {
        path: np.log(row(target, path))
        for d in range(depth)
        for path in product(range(size), repeat=d)
    }
    for _ in range(runs):
        beam, tree = [((), 0.0, 0.0)], ()
        for _ in range(depth):
            level = []
            for path, phi, top in beam:
                phis = phi + logq[path]
                g = phis + dice.gumbel(size=size)
                u = top - g + np.log1p(-np.exp(np.where(g == g.max(), -1.0, g - g.max())))
                given = np.where(
                    g == g.max(), top, top - np.maximum(u, 0) - np.log1p(np.exp(-np.abs(u)))
                )
                level += [((*path, x), phis[x], given[x]) for x in range(size)]
            beam = sorted(level, key=lambda n: -n[2])[:width]
            tree += tuple(n[0] for n in beam)
        out[tree] += 1 / runs
    return out


def test_the_race_is_stochastic_beam_search():
    target, runs = toy_law(5), 12000
    want, got = (
        laws(StochasticBeamTree(2), target, DraftBudget(2, 4)),
        kool(target, 3, 2, 2, runs, 0),
    )
    assert set(got) <= set(want)
    chi = sum((got.get(t, 0.0) - p) ** 2 * runs / p for t, p in want.items() if p * runs > 5)
    free = sum(p * runs > 5 for p in want.values()) - 1
    assert chi < free + 4 * math.sqrt(2 * free), (
        f"chi-square {chi:.0f} on {free} degrees of freedom"
    )


def test_a_beam_of_one_is_a_chain():
    a, b = (
        laws(tree, toy_law(6), DraftBudget(3, 3)) for tree in (StochasticBeamTree(1), ChainTree())
    )
    assert a.keys() == b.keys() and all(a[k] == pytest.approx(b[k], abs=1e-12) for k in a)


def test_a_wide_beam_holds_every_path():
    for seed in range(5):
        draft = grow(StochasticBeamTree(9), toy_law(7), DraftBudget(2, 20), Rng.of_choice(seed))
        assert sorted(paths(draft)) == sorted(
            [(a,) for a in range(3)] + list(product(range(3), repeat=2))
        )


@pytest.mark.parametrize("width, depth", [(2, 2), (3, 2), (2, 3)])
def test_beams_keep_the_law(record_counts, width, depth):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t,
                ModelDrafter(d, StochasticBeamTree(width)),
                ExactVerifier(),
                FixedPolicy(depth, width * depth),
            ),
            laws=1 if depth == 3 else 4,
            length=2 if depth == 2 else 3,
            shapings=("plain", "shaped"),
        )
    )


# greedy growth


@pytest.mark.parametrize("seed", range(12))
def test_a_low_threshold_gives_all_that_the_best_slots_give(seed):
    target, budget = toy_law(seed, 5), DraftBudget(6, 7)
    one = grow(BestSlotTree(), target, budget, Rng.of_choice(seed))
    many = grow(GreedyGrowthTree(1e-6), target, DraftBudget(6, 1000), Rng.of_choice(seed))
    assert len(one) == 8 and set(paths(one)) <= set(paths(many))


def places(target, size, most):
    """Of a greedy draft every place's value, level by level, by going through the whole tree."""
    out, level = [], [((), 1.0)]
    for _ in range(most):
        below = []
        for path, v in level:
            q = row(target, path)
            left = 1.0
            for x in np.argsort(-q, kind="stable"):
                out.append(v * left)
                below.append(((*path, int(x)), v * q[x]))
                left -= q[x]
        level = below
    return sorted(out, reverse=True)


@pytest.mark.parametrize("nodes", range(1, 7))
def test_best_slots_fill_the_most_valuable_places(nodes):
    for seed in range(4):
        target = toy_law(seed, 3)
        draft = grow(
            BestSlotTree(),
            ShapedTarget(target, GreedyRule()),
            DraftBudget(nodes, nodes),
            Rng.of_choice(0),
        )
        got = 0.0
        for node, children in enumerate(draft.children):
            v = math.prod(draft.chance[i] for i in draft.path_to(node))
            left = 1.0
            for c in children:
                got += v * left
                left -= draft.chance[c]
        assert len(draft) == nodes + 1 and got == pytest.approx(
            sum(places(target, 3, nodes)[:nodes])
        )


@pytest.mark.parametrize(
    "tree", [GreedyGrowthTree(0.1), BestSlotTree()], ids=lambda t: type(t).__name__
)
def test_a_sure_draft_gives_a_chain_and_an_unsure_one_a_fan(tree):
    sure, unsure = toy_law(1, 6, sharp=2000.0), toy_law(1, 6, sharp=0.0)
    assert max(grow(tree, sure, DraftBudget(8, 8), Rng.of_choice(1)).depth) == 8
    draft = grow(tree, unsure, DraftBudget(8, 5), Rng.of_choice(1))
    assert draft.depth == (0, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    "tree",
    [GreedyGrowthTree(0.5, floor=1.0), BestSlotTree(floor=1.0)],
    ids=lambda t: type(t).__name__,
)
def test_at_floor_1_every_draft_gives_a_chain(tree):
    assert grow(tree, toy_law(1, 6, sharp=0.0), DraftBudget(5, 5), Rng.of_choice(1)).parent == (
        -1,
        0,
        1,
        2,
        3,
        4,
    )


def test_a_ranked_tree_names_no_path_below_the_floor():
    """What is left is the tree without a floor, less the paths that are too unlikely; nothing is grown below these."""
    target, tree = toy_law(2, 6), RankedTree.of_rates(((0.5, 0.3, 0.2),) * 3, 20)
    whole = grow(tree, target, DraftBudget(3, 20), Rng.of_choice(0))

    def likely(path):
        """A path's probability under the model."""
        return math.prod(row(target, path[:n])[token] for n, token in enumerate(path))

    for floor in (0.0, 0.1, 0.3, 0.9):
        wanted = [path for path in paths(whole) if likely(path) >= floor]
        cut = grow(tree, target, DraftBudget(3, 20, floor=floor), Rng.of_choice(0))
        assert list(paths(cut)) == wanted
    assert 0 < len(paths(grow(tree, target, DraftBudget(3, 20, floor=0.1), Rng.of_choice(0)))) < 20


def test_a_higher_floor_gives_deeper_trees():
    depth = [
        sum(
            max(
                grow(
                    GreedyGrowthTree(0.06, floor=a),
                    toy_law(2, 6),
                    DraftBudget(9, 9),
                    Rng.of_choice(s),
                ).depth
            )
            for s in range(20)
        )
        for a in (0.0, 0.4, 0.8)
    ]
    assert depth == sorted(depth) and depth[2] > 1.3 * depth[0]


def test_values_fade_with_rank():
    """A child of share s in rank r counts (floor + (1 - floor) s) fade^r: what is filled follows from that."""
    target = toy_law(3, 4)
    for tree in (
        GreedyGrowthTree(0.2, floor=0.3, fade=0.5),
        BestSlotTree(0.2, floor=0.3, fade=0.5),
    ):
        draft = grow(tree, target, DraftBudget(1, 9), Rng.of_choice(5))
        q, left, value, want = row(target, ()), 1.0, 1.0, 0
        for r, c in enumerate(draft.children[0]):
            assert value >= 0.2
            value *= 1 - (0.3 + 0.7 * q[draft.token[c]] / left) * 0.5**r
            left -= q[draft.token[c]]
            want = r + 1
        assert want == 4 or value < 0.2


def test_a_threshold_bounds_the_tree():
    sizes = [
        len(grow(GreedyGrowthTree(t), toy_law(3, 6), DraftBudget(8, 100), Rng.of_choice(2)))
        for t in (1.0, 0.5, 0.2, 0.1, 0.05)
    ]
    assert sizes[0] == 2 and sizes == sorted(sizes) and sizes[-1] > sizes[1]


@pytest.mark.parametrize(
    "tree",
    [
        GreedyGrowthTree(0.2),
        GreedyGrowthTree(0.01),
        GreedyGrowthTree(0.2, floor=0.4, fade=0.6),
        BestSlotTree(),
    ],
    ids=str,
)
def test_growth_keeps_the_law(record_counts, tree):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t, ModelDrafter(d, tree), ExactVerifier(), FixedPolicy(2, 4)
            ),
            laws=4,
            length=2,
        )
    )


# best first


@pytest.mark.parametrize("nodes", [1, 3, 6, 11])
def test_best_first_keeps_the_likeliest_nodes(nodes):
    for seed in range(4):
        target = toy_law(seed, 4)
        every = {path: p for d in (1, 2, 3) for path, p in path_law(target, 4, d).items()}
        best = sorted(every.values(), reverse=True)[:nodes]
        for bent in (
            target,
            ShapedTarget(target, GreedyRule()),
        ):  # a greedy draft is ranked by its model's own law
            draft = grow(BestFirstTree(64), bent, DraftBudget(3, nodes), Rng.of_choice(0))
            assert [
                every[p] for p in sorted(paths(draft), key=lambda p: -every[p])
            ] == pytest.approx(best)
            assert draft.chance[1:] == tuple(
                pytest.approx(row(target, p[:-1])[p[-1]]) for p in paths(draft)
            )


def test_best_first_of_width_one_is_the_greedy_chain():
    for seed in range(4):
        draft = ShapedTarget(toy_law(seed, 5), GreedyRule())
        assert (
            grow(BestFirstTree(1), draft, DraftBudget(4, 4), Rng.of_choice(0)).token
            == grow(ChainTree(), draft, DraftBudget(4, 4), Rng.of_choice(0)).token
        )


def test_best_first_looks_no_further_than_its_width():
    draft = grow(BestFirstTree(2), toy_law(2, 8, sharp=0.1), DraftBudget(3, 64), Rng.of_choice(0))
    assert [len(c) for c in draft.children[:3]] == [2, 2, 2] and draft.depth.count(3) == 4


def test_best_first_keeps_the_law(record_counts):
    for verifier in (MatchVerifier(), ExactVerifier()):
        record_counts(
            check_law(
                lambda t, d, v=verifier: SpeculativeDecoder(
                    t, ModelDrafter(d, BestFirstTree(2)), v, FixedPolicy(2, 4)
                ),
                laws=4,
                length=3,
            )
        )


# widest


def by_widths(target, widths):
    """The rule in a few lines: of all paths one token below what a level kept, the likeliest."""
    kept, out = {(): 1.0}, list[tuple[int, ...]]()
    for width in widths:
        every = {
            (*path, x): p * float(q)
            for path, p in kept.items()
            for x, q in enumerate(row(target, path))
        }
        kept = dict(sorted(every.items(), key=lambda one: -one[1])[:width])
        out += kept
    return out


@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 5, 3), (3, 1, 4), (4,)])
def test_each_level_holds_its_likeliest_paths(widths):
    for seed in range(4):
        target = toy_law(seed, 4)
        for bent in (target, ShapedTarget(target, GreedyRule())):
            draft = grow(WidestTree(widths), bent, DraftBudget(9, 64), Rng.of_choice(0))
            assert sorted(paths(draft)) == sorted(by_widths(target, widths))
    draft = grow(WidestTree((2, 5, 3)), toy_law(1, 4), DraftBudget(9, 4), Rng.of_choice(0))
    assert len(draft) == 5 and draft.depth.count(2) == 2, "what there is no room for is left out"


def test_levels_of_width_one_are_the_greedy_chain():
    draft = ShapedTarget(toy_law(3, 5), GreedyRule())
    chain = grow(ChainTree(), draft, DraftBudget(4, 4), Rng.of_choice(0))
    assert (
        grow(WidestTree((1, 1, 1, 1)), draft, DraftBudget(4, 4), Rng.of_choice(0)).token
        == chain.token
    )
    with pytest.raises(ValueError, match=r"widths is \(2, 65\)"):
        WidestTree((2, 65))


def test_widest_keeps_the_law(record_counts):
    for verifier in (MatchVerifier(), ExactVerifier()):
        record_counts(
            check_law(
                lambda t, d, v=verifier: SpeculativeDecoder(
                    t, ModelDrafter(d, WidestTree((2, 2))), v, FixedPolicy(2, 4)
                ),
                laws=4,
                length=3,
            )
        )


# nucleus


def by_the_rule(target, mass, share, depth, nodes):
    """Clover's rule, written down: of each level's nucleus, where at least a quarter of the likeliest, the best that fit."""
    level, out = {(): 1.0}, []
    for _ in range(depth):
        found = {}
        for path, p in level.items():
            q_V, before = row(target, path), 0.0
            for x in sorted(range(len(q_V)), key=lambda x: -q_V[x]):
                if before < mass and q_V[x] >= share * q_V.max():
                    found[(*path, x)] = p * q_V[x]
                before += q_V[x]
        kept = sorted(found, key=found.get, reverse=True)[: nodes - len(out)]
        level = {path: found[path] for path in kept}
        out += kept
    return out


@pytest.mark.parametrize("mass, share", [(0.95, 0.25), (0.6, 0.25), (1.0, 0.0), (0.95, 0.7)])
def test_nucleus_is_the_rule_written_down(mass, share):
    for seed, nodes in product(range(4), (1, 4, 9)):
        target = toy_law(seed, 5)
        want = by_the_rule(target, mass, share, 3, nodes)
        for bent in (target, ShapedTarget(target, GreedyRule())):
            draft = grow(NucleusTree(mass, share), bent, DraftBudget(3, nodes), Rng.of_choice(0))
            assert set(paths(draft)) == set(want) and len(draft) <= nodes + 1


def test_nucleus_drops_what_is_below_a_quarter_of_the_first():
    target = toy_law(0, 5, eos=-1)
    target.network.weight[:] = log_of((0.5, 0.2, 0.1, 0.1, 0.1))
    assert paths(grow(NucleusTree(), target, DraftBudget(1, 9), Rng.of_choice(0))) == ((0,), (1,))
    wide = grow(NucleusTree(share=0.2), target, DraftBudget(1, 9), Rng.of_choice(0))
    assert len(paths(wide)) == 5
    target.network.weight[:] = log_of((0.9, 0.1, 1e-9, 1e-9, 1e-9))
    sure = grow(NucleusTree(), target, DraftBudget(4, 4), Rng.of_choice(0))
    assert paths(sure) == ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))  # deep, where it is sure


def log_of(law):
    return torch.tensor(law, dtype=torch.float64).log()


def test_nucleus_at_the_whole_share_is_the_greedy_chain():
    for seed in range(4):
        draft = ShapedTarget(toy_law(seed, 5), GreedyRule())
        got, want = (
            grow(t, draft, DraftBudget(4, 4), Rng.of_choice(0))
            for t in (NucleusTree(share=1.0), ChainTree())
        )
        assert got.token == want.token


def test_nucleus_keeps_the_law(record_counts):
    for verifier in (MatchVerifier(), ExactVerifier()):
        record_counts(
            check_law(
                lambda t, d, v=verifier: SpeculativeDecoder(
                    t, ModelDrafter(d, NucleusTree()), v, FixedPolicy(2, 4)
                ),
                laws=4,
                length=3,
            )
        )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: NucleusTree(0.0), "mass is 0.0: it must be above 0 and at most 1"),
        (lambda: NucleusTree(share=1.5), "share is 1.5: it must lie in 0 to 1"),
        (lambda: StochasticBeamTree(0), "width is 0: it must lie in 1 to 64"),
        (lambda: BestFirstTree(65), "width is 65: it must lie in"),
        (lambda: GreedyGrowthTree(0.0), "threshold is 0.0: it must be above 0 and at most 1"),
        (lambda: GreedyGrowthTree(width=0), "width is 0: it must"),
        (lambda: BestSlotTree(floor=2.0), "floor is 2.0: it must lie in"),
        (lambda: BestSlotTree(1.5), "least is 1.5: it must lie in 0 to 1"),
    ],
)
def test_one_clear_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_constant_branching_is_the_static_tree():
    decoder, _ = build("rsd-c", toy_law(1), toy_law(2))
    assert decoder.drafter.tree == StaticTree((2, 1, 1))
