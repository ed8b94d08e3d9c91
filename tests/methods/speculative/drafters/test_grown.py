"""Trees that the compiled step grows in one call: those that the tree's own rule grows, level by level."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from polydec import load
from polydec.base.errors import PolydecError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters._states import ONLY_ARGMAX, SEEN, StateGuess, reads_argmax
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, can_always_continue
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import narrow
from polydec.models.native.growth import (
    NativeTreeGrower,
    TipState,
    TreeGrowthQuery,
    add_native_matrix,
)
from polydec.models.native.library import native_instruction_sets, native_step_availability

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)
PROMPT = tuple(range(5, 40))


@cache
def bound():
    """zoo:tiny, and a random narrow drafter on its states."""
    target = load("zoo:tiny").checkpoint.lm
    width = target.network.config.width
    return target, narrow.examples(target.vocab, width, width)[0].bound_drafter(target)


def rounds(drafter, target, one_call: bool, forks: bool = False):
    """The drafts of a text, and the text; one_call: where the compiled step grows trees at all."""
    drafts = []

    class Seen:
        def open_guess(self, prompt, session):
            guess = drafter.open_guess(prompt, session)
            return Watched(guess if one_call else replace(guess, grower=None))

    class Watched:
        def __init__(self, guess: StateGuess):
            self.guess, self.want, self.price = guess, guess.want, 0.0
            self.learn_round, self.close = guess.learn_round, guess.close

        async def propose_draft(self, root, position, budget, rng):
            drafts.append(await self.guess.propose_draft(root, position, budget, rng))
            return drafts[-1]

        def fork_guess(self, session, choice=None):
            return Watched(self.guess.fork_guess(session, choice))

    decoder = SpeculativeDecoder(target, Seen(), MatchVerifier(), FixedPolicy(4, 12))
    return drafts, run_coroutines([answer_one(decoder, Request(PROMPT, 24, n=2 if forks else 1))])[
        0
    ]


class Exact:
    """The rule of BestFirst in float64, of equals the first, as a tree that draws nothing. trees: what it would draw, as
    (paths, chances); close: of each the least part by which two of its choices differ, equals left out."""

    def __init__(self, width, tips):
        self.expands, self.trees, self.close = (width, tips), [], []

    async def grow_tree(self, laws, root, position, budget, rng):
        width, tips = self.expands
        fed, open_, named, gaps = Draft.chain_draft(root), [((), 0, 1.0)], [], [1.0]

        def ranked(pairs, most):
            """The best `most` of pairs that end with their worth."""
            pairs = sorted(pairs, key=lambda pair: -pair[-1])
            worth = [pair[-1] for pair in pairs[: most + 1]]
            gaps.extend(1 - b / a for a, b in itertools.pairwise(worth) if a > b > 0)
            return pairs[:most]

        for _ in range(budget.depth):
            scores, level = await laws.score_draft(fed, ScoreRequest(base=RowDetail.ROW)), []
            for path, at, chance in open_:
                logits_V = scores.base.log_weights(at).double()
                exact_V = (logits_V - logits_V.logsumexp(0)).exp()
                first = exact_V.sort(descending=True, stable=True).indices[: width + 1].tolist()
                best = ranked([(x, float(exact_V[x])) for x in first], width)
                level += [
                    ((*path, x), at, q, chance * q)
                    for x, q in best
                    if q and chance * q >= budget.floor
                ]
            level = ranked(level, len(level))
            named += level
            open_ = []
            for path, above, _, chance in level[:tips]:
                open_.append((path, len(fed), chance))
                fed = fed.with_node(path[-1], above, DrawKind.CERTAIN, None)
        kept = ranked(named, budget.nodes)
        kept.sort(key=lambda one: len(one[0]))
        self.trees.append(([one[0] for one in kept], [one[2] for one in kept]))
        self.close.append(min(gaps))
        return Draft.chain_draft(root)


def paths_of(draft):
    """Of each node but the root the tokens down to it."""
    return [
        tuple(draft.token[j] for j in draft.path_to(i))[-draft.depth[i] :]
        for i in range(1, len(draft))
    ]


def near(got, want):
    """Whether chances are those, as nearly as models/native/growth.py says: 1e-6 and 2^-24 of the logarithm."""
    for x, exact in zip(got, want, strict=True):
        off = abs(math.log(x) - math.log(exact))
        assert off <= 1e-6 + 2**-24 * abs(math.log(exact)), (x, exact)


def grown_thrice(eagle, states, width, tips, budget, root=3):
    """(the tree of one call, BestFirst's level by level, what Exact drew) behind these true states, of a fresh guess each."""
    session = bound()[0].open_session((1, 2))
    out, exact = [], Exact(width, tips)
    for tree, grower in (
        (BestFirstTree(width, tips), True),
        (BestFirstTree(width, tips), False),
        (exact, False),
    ):
        guess = EagleDrafter(eagle, tree).open_guess((1, 2), session)
        guess.text, guess.true_H = (2, root), torch.zeros(1)
        guess.pending = [((5 + i,), state_S) for i, state_S in enumerate(states)]
        guess = guess if grower else replace(guess, grower=None)
        out.append(run_coroutines([guess.propose_draft(root, 0, budget, None)])[0])
    session.close()
    return out[0], out[1], exact


SHAPES = [
    (1, 1, 6, 64, 0.0),
    (3, 3, 4, 12, 0.0),
    (4, 2, 5, 30, 1e-3),
    (2, 8, 6, 9, 0.0),
    (8, 5, 3, 60, 1e-5),
]
"""Width, tips, depth, nodes, floor."""


@pytest.mark.parametrize("width, tips, depth, nodes, floor", SHAPES)
def test_trees_are_the_rules_and_chances_as_near_as_is_said(width, tips, depth, nodes, floor):
    """Behind states of every size. Only where two choices are as near to one another as rounding may a tree be another."""
    target, eagle = bound()
    g, H, sure = torch.Generator().manual_seed(width), target.network.config.width, 0
    for i in range(20):
        states = torch.randn(1 + i % 4, 2 * H, generator=g) * 4.0 ** (i % 3 - 1)
        budget = DraftBudget(depth, nodes, floor=floor)
        one, by_level, exact = grown_thrice(eagle, states, width, tips, budget)
        if exact.close[0] > 1e-4:
            sure += 1
            assert len(one) > depth if not floor else len(one) > 1
            assert (one.token, one.parent) == (by_level.token, by_level.parent)
            assert paths_of(one) == exact.trees[0][0]
            near(one.chance[1:], exact.trees[0][1])
            assert one.chance == pytest.approx(by_level.chance, rel=1e-5)
    assert sure >= 12


@pytest.mark.parametrize("width", [1, 3])
def test_a_text_is_drafted_in_one_call_as_level_by_level(width):
    target, eagle = bound()
    drafter, greedy = EagleDrafter(eagle, BestFirstTree(width)), ShapedTarget(target, GreedyRule())
    (one, text), (by_level, other) = (rounds(drafter, greedy, at_once) for at_once in (True, False))
    assert eagle.grower is not None
    assert len(one) == len(by_level) > 4 and text.token_ids == other.token_ids
    both = [(a, b) for a, b in zip(one, by_level) if len(a) > 1]
    assert [(d.token, d.parent) for d in one] == [(d.token, d.parent) for d in by_level]
    assert len(both) > 3 and all(a.chance == pytest.approx(b.chance, rel=1e-5) for a, b in both)


def behind(eagle, logits_C, width, nodes, floor=0.0):
    """What one level gives behind these logits."""
    H = bound()[0].network.config.width
    tip = TipState(torch.zeros(H), logits_C)
    q = TreeGrowthQuery(
        eagle.grower._step.new_cache(),
        torch.empty(0),
        torch.empty(0),
        tip,
        1,
        width,
        1,
        nodes,
        floor,
    )
    return eagle.grower.forward([q])[0].nodes


def test_chances_of_any_logits_are_within_what_is_said():
    """Against float64: level rows, steep ones, numbers whose powers are farthest from a whole one, absent tokens."""
    _, eagle = bound()
    C, g, tried = len(eagle.own.token_C), torch.Generator().manual_seed(7), 0
    line = torch.arange(C).float()
    rows = [torch.zeros(C), -line, -0.0009765625 * line, -40.0 * line, 1e4 - 1e3 * line]
    rows += [torch.randn(C, generator=g) * s for s in (0.01, 0.3, 1.0, 3.0, 10.0, 100.0)]
    for r in (-0.5, -0.34, -0.17, 0.17, 0.34, 0.5):
        rows += [
            torch.full((C,), r - k * math.log(2)).index_fill(0, torch.tensor([3]), 0.0)
            for k in (1, 2, 9)
        ]
    rows += [
        torch.randn(C, generator=g).masked_fill(torch.rand(C, generator=g) < p, -math.inf)
        for p in (0.1, 0.9)
    ]
    rows.append(torch.full((C,), -math.inf).index_fill(0, torch.tensor([2, 9, 17]), 1.0))
    for logits_C in rows:
        exact = (logits_C.double() - logits_C.double().logsumexp(0)).exp()
        token_C = exact.sort(descending=True, stable=True).indices[:64]
        nodes = behind(eagle, logits_C, 64, 64)
        want = [
            (int(eagle.own.token_C[x]), float(exact[x]))
            for x in token_C.tolist()
            if exact[x] > 1e-40
        ]
        assert [x for _, x, q in nodes][: len(want)] == [x for x, _ in want]
        near([q for _, _, q in nodes][: len(want)], [q for _, q in want])
        assert all(0 < q < 1e-38 for _, _, q in nodes[len(want) :])
        tried += len(want)
        for k in (0, len(nodes) // 2):  # no path below the floor, which itself is none
            floor = nodes[k][2]
            above = [q for _, _, q in nodes if q >= floor]
            assert len(behind(eagle, logits_C, 64, 64, floor)) == len(above)
            if k:
                higher = math.nextafter(floor, 1.0)
                assert len(behind(eagle, logits_C, 64, 64, higher)) == sum(q > floor for q in above)
    assert tried > 900


@pytest.mark.parametrize("at", [0, 1, 15, 16, -17, -1])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_told_wherever_they_stand(at, bad):
    _, eagle = bound()
    logits_C = torch.randn(len(eagle.own.token_C), generator=torch.Generator().manual_seed(1))
    assert len(behind(eagle, logits_C, 2, 4)) == 2
    logits_C[at] = bad
    with pytest.raises(PolydecError, match="NaN or infinite"):
        behind(eagle, logits_C, 2, 4)
    with pytest.raises(PolydecError, match="NaN or infinite"):
        behind(eagle, torch.full_like(logits_C, -math.inf), 2, 4)


def doubled(eagle, factor=1.0):
    """The same with a head whose rows come in pairs, and so its logits, and this much larger."""
    head_CH = eagle.own.head_CH.repeat_interleave(2, 0)[: len(eagle.own.head_CH)]
    own = replace(eagle.own, head_CH=head_CH, norm_H=eagle.own.norm_H * factor)
    return replace(eagle, own=own)


@pytest.mark.parametrize("width, tips, depth, nodes", [(4, 3, 3, 12), (3, 2, 4, 7), (2, 1, 5, 3)])
def test_of_equals_the_first_is_named_and_goes_on(width, tips, depth, nodes):
    """Tokens, paths of a level and paths of two levels that are equally likely: as sorts that leave equals in their order."""
    target, eagle = bound()
    g, H = torch.Generator().manual_seed(2), target.network.config.width
    for factor, twin in ((1.0, True), (1000.0, False)):  # 1000: nearly all chances are 1 to the bit
        some = (
            doubled(eagle, factor)
            if twin
            else replace(eagle, own=replace(eagle.own, norm_H=eagle.own.norm_H * factor))
        )
        sure = 0
        for _ in range(8):
            states = torch.randn(2, 2 * H, generator=g)
            one, _, exact = grown_thrice(some, states, width, tips, DraftBudget(depth, nodes))
            if exact.close[0] > 1e-4:
                assert paths_of(one) == exact.trees[0][0]
                sure += len(set(one.chance)) < len(one.chance)
        assert sure >= 4


def test_a_head_of_few_tokens_is_asked_for_those_alone():
    """A tree wider than the head's vocabulary is the rule's all the same."""
    _, eagle = bound()
    own = replace(eagle.own, token_C=eagle.own.token_C[:5], head_CH=eagle.own.head_CH[:5])
    few = replace(eagle, own=own, table=lambda: eagle.table()[:5])
    states = torch.randn(
        2, 2 * bound()[0].network.config.width, generator=torch.Generator().manual_seed(3)
    )
    one, by_level, exact = grown_thrice(few, states, 8, 8, DraftBudget(3, 40))
    assert len(one) == 41 and (one.token, one.parent) == (by_level.token, by_level.parent)
    assert paths_of(one) == exact.trees[0][0]
    few.grower._id *= 2  # more than the library has rows of
    with pytest.raises(PolydecError, match="outside"):
        grown_thrice(few, states, 6, 6, DraftBudget(3, 40))
    assert len(grown_thrice(few, states, 5, 5, DraftBudget(3, 40))[0]) == 41


@pytest.mark.parametrize("length", range(238, 244))
def test_room_is_made_for_every_path_of_every_level(length):
    """Behind so many entries that a tree fills the cache to its last slot, or just not."""
    target, eagle = bound()
    H, g = target.network.config.width, torch.Generator().manual_seed(4)
    states = torch.randn(length, 2 * H, generator=g)
    one, by_level, _ = grown_thrice(eagle, states, 4, 4, DraftBudget(5, 30))
    assert len(one) == 31 and (one.token, one.parent) == (by_level.token, by_level.parent)
    session = target.open_session((1, 2))
    guess = EagleDrafter(eagle, BestFirstTree(4)).open_guess((1, 2), session)
    guess.text, guess.true_H = (2, 3), torch.zeros(1)
    guess.pending = [((5 + i,), state_S) for i, state_S in enumerate(states[:-1])]
    run_coroutines([guess._catch_up()])
    guess.pending = [((5 + length - 1,), states[-1])]
    last = run_coroutines([guess.propose_draft(3, 0, DraftBudget(5, 30), None)])[0]
    assert (last.token, last.parent) == (one.token, one.parent)
    assert guess.cache.length == length and not guess.cache.parent
    session.close()


def test_rows_are_divided_by_their_root_mean_square():
    _, eagle = bound()
    step, H = eagle.grower._step, bound()[0].network.config.width
    rows = (
        torch.randn(70, H, generator=torch.Generator().manual_seed(5))
        * 10.0 ** torch.arange(-35, 35)[:, None]
    )
    rows = rows.clamp(-1e18, 1e18)
    want = rows.double() / (rows.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    got = eagle.grower.even_rows(rows)
    assert torch.allclose(got.double(), want, rtol=1e-6, atol=0.0) and got.shape == rows.shape
    assert torch.equal(eagle.grower.even_rows(rows[3:4]), got[3:4])
    assert torch.equal(eagle.grower.even_rows(rows.T.contiguous().T), got)
    assert eagle.grower.even_rows(rows[:0]).shape == (0, H)
    at, lib, model = rows.data_ptr(), step._lib, step._model
    for n, count, room in ((0, 0, 0), (2, H, H), (1, H, 2 * H), (1, H - 1, H - 1), (-1, -H, -H)):
        assert lib.step_even(model, n, at, count, at, room) in (3, 6)
    assert lib.step_even(model, 1, None, H, at, H) == lib.step_even(model, 1, at, H, None, H) == 3


def test_a_layer_without_a_join_grows_nothing_and_matrices_have_their_shapes():
    target, eagle = bound()
    H = target.network.config.width
    alone = eagle.layer.layer.layer_network(target.vocab.size, eagle.own)
    for part, k in (("join", H), ("join", 3 * H), ("fuse", H + 32), ("fuse", 65 * H)):
        with pytest.raises(PolydecError, match="shape"):
            add_native_matrix(alone, part, torch.zeros(H, k))
        with pytest.raises(PolydecError, match="shape"):
            add_native_matrix(alone, part, torch.zeros(2 * H, 2 * H))
    grower = NativeTreeGrower(alone, torch.zeros(H, 2 * H), eagle.own.token_C, eagle.table)
    q = TreeGrowthQuery(alone.new_cache(), torch.ones(1, H), torch.ones(1, 2 * H), None, 2, 2, 2, 4)
    with pytest.raises(PolydecError, match="weights are missing"):
        grower.forward([q])
    wrong = NativeTreeGrower(eagle.grower._step, eagle.fuse_HD, eagle.own.token_C, eagle.table)
    wrong._states = 3
    with pytest.raises(PolydecError, match="shorter or longer"):
        wrong.forward([replace(q, cache=eagle.grower._step.new_cache())])


def test_trees_have_the_same_bits_on_every_instruction_set(monkeypatch):
    target, eagle = bound()
    monkeypatch.setenv("POLYDEC_COMPUTE", "int16")
    states = torch.randn(
        3, 2 * target.network.config.width, generator=torch.Generator().manual_seed(6)
    )
    seen = []
    for isa in native_instruction_sets():
        monkeypatch.setenv("POLYDEC_ISA", isa)
        some = replace(eagle)
        assert isa in some.network.step.kernel
        one, by_level, _ = grown_thrice(some, states, 4, 3, DraftBudget(5, 40))
        assert (one.token, one.parent) == (by_level.token, by_level.parent) and len(one) == 41
        seen.append((one.token, one.parent, one.chance))
    assert seen == seen[:1] * len(seen)


def drawn(guess, budget):
    d = run_coroutines([guess.propose_draft(guess.text[-1], 0, budget, None)])[0]
    return d.token, d.parent


def test_rounds_in_one_call_and_level_by_level_take_turns():
    """Whatever stands between two of them (states or none, many of them, a fork, no room at all), a tree is what a guess
    draws that has never grown one."""
    target, eagle = bound()
    H, g, calls = target.network.config.width, torch.Generator().manual_seed(8), []
    session, dice = target.open_session((1, 2)), random.Random(8)
    one = EagleDrafter(eagle, BestFirstTree(3)).open_guess((1, 2), session)
    level = replace(EagleDrafter(eagle, BestFirstTree(3)).open_guess((1, 2), session), grower=None)

    class Counted:
        cost = 1.0

        def forward(self, queries):
            calls.extend(queries)
            return eagle.grower.forward(queries)

    counted = Counted()
    counted.answer_tip, counted.answer_of_tip = eagle.grower.answer_tip, eagle.grower.answer_of_tip
    one.grower = counted

    def on(depth, q):
        return True

    def stops(depth, q):
        return depth < 2

    ways = Counter()
    for turn in range(60):
        fresh = 1 if not turn else dice.choice((0, 0, 1, 2, 3, 70))
        for _ in range(fresh):
            state_S, token = torch.randn(2 * H, generator=g), dice.randrange(5, 60)
            for guess in (one, level):
                guess.text, guess.true_H = (*guess.text, token)[-2:], torch.zeros(1)
                guess.pending.append(((token,), state_S))
        go_on, before = (
            dice.choice((can_always_continue, can_always_continue, on, stops)),
            len(calls),
        )
        depth, nodes = dice.choice(((3, 9), (3, 9), (5, 30), (0, 4), (2, 0)))
        budget = DraftBudget(depth, nodes, go_on=go_on)
        got, want = drawn(one, budget), drawn(level, budget)
        assert got == want, turn
        grew = len(calls) - before
        assert grew == (go_on is can_always_continue and depth > 0 and nodes > 0)
        if go_on is stops and depth > 1 and nodes > 3:
            assert max(Draft.certain_tree(*got).depth) == 2
        ways[go_on, fresh > 1, grew] += 1
        if dice.random() < 0.3:
            one, level = one.fork_guess(session), level.fork_guess(session)
    assert len(ways) >= 8 and len(calls) > 15
    session.close()


def test_a_long_prompt_is_read_in_parts_and_a_known_tip_again():
    target, eagle = bound()
    drafter, session = EagleDrafter(eagle, BestFirstTree(2)), target.open_session((1, 2))
    guess = drafter.open_guess((1, 2), session)
    guess.text, guess.true_H = (2, 3), torch.zeros(1)
    g = torch.Generator().manual_seed(1)
    width = target.network.config.width
    guess.pending = [((i,), torch.randn(2 * width, generator=g)) for i in range(1, 91)]
    budget = DraftBudget(3, 6)
    first = run_coroutines([guess.propose_draft(3, 0, budget, None)])[0]  # 90 states: as a prompt
    again = run_coroutines([guess.propose_draft(3, 0, budget, None)])[
        0
    ]  # no state: behind the same tip
    by_level = run_coroutines(
        [
            replace(guess, grower=None, tip=eagle.grower.answer_of_tip(guess.end)).propose_draft(
                3, 0, budget, None
            )
        ]
    )[0]
    assert len(first) == 7 and guess.cache.length == 90
    for other in (again, by_level):
        assert (other.token, other.parent) == (first.token, first.parent)
    twin = guess.fork_guess(session)
    assert run_coroutines([twin.propose_draft(3, 0, budget, None)])[0].token == first.token


def test_a_law_that_is_bent_is_grown_by_level():
    target, _ = bound()

    def one_call(*shapers):
        session = ShapedTarget(target, *shapers).open_session(PROMPT)
        return reads_argmax(session, PROMPT[-1])

    assert one_call(GreedyRule()) and reads_argmax(target.open_session(PROMPT), 1)
    assert not one_call(RepetitionPenaltyRule(1.3), GreedyRule()) and not one_call(
        TemperatureRule(0.7)
    )
    assert ONLY_ARGMAX.likeliest_token(0) == SEEN


@pytest.mark.parametrize("field", ["width", "tips", "depth", "nodes", "floor"])
def test_what_lies_outside_is_refused_by_the_library(field):
    target, eagle = bound()
    width = target.network.config.width
    good = {"depth": 2, "width": 2, "tips": 2, "nodes": 4}
    cache_ = eagle.grower._step.new_cache()
    for bad in (math.nan, 1.5) if field == "floor" else (0, 5000):
        if field == "nodes" and not bad:
            continue  # an answer without room
        q = TreeGrowthQuery(cache_, torch.randn(1, width), torch.randn(1, 2 * width), None, **good)
        with pytest.raises(Exception, match="outside"):
            eagle.grower.forward([replace(q, **{field: bad})])
        assert cache_.length == 0


def test_states_that_are_no_numbers_are_told():
    target, eagle = bound()
    width = target.network.config.width
    state = torch.full((1, 2 * width), float("nan"))
    with pytest.raises(Exception, match="NaN or infinite"):
        eagle.grower.forward(
            [
                TreeGrowthQuery(
                    eagle.grower._step.new_cache(), torch.ones(1, width), state, None, 2, 2, 2, 4
                )
            ]
        )


def test_a_floor_and_few_tips_grow_what_the_rule_grows_whatever_shapes_the_target():
    target, eagle = bound()
    law = ShapedTarget(target, RepetitionPenaltyRule(1.3), TemperatureRule(0.7))
    one, by_level = [], []
    for drafts, one_call in ((one, True), (by_level, False)):
        session = law.open_session((1, 2))
        guess = EagleDrafter(eagle, BestFirstTree(4, 1), prompt=False, bent=False).open_guess(
            (1, 2), session
        )
        guess.text, guess.true_H = (2, 3), torch.zeros(1)
        g, width = torch.Generator().manual_seed(1), target.network.config.width
        guess.pending = [((3,), torch.randn(2 * width, generator=g))]
        guess = guess if one_call else replace(guess, grower=None)
        for floor in (0.0, 1e-3, 0.9999):
            drafts.append(
                run_coroutines([guess.propose_draft(3, 0, DraftBudget(5, 16, floor=floor), None)])[
                    0
                ]
            )
    assert [(d.token, d.parent) for d in one] == [(d.token, d.parent) for d in by_level]
    assert len(one[0]) == 17 > len(one[1]) and len(one[2]) == 1
    value = [1.0]
    for p, c in zip(one[1].parent[1:], one[1].chance[1:], strict=True):
        value.append(value[p] * c)
    assert min(value) >= 1e-3
    expanded = {}
    for p, depth in zip(one[0].parent[1:], one[0].depth[1:], strict=True):
        expanded.setdefault(depth, set()).add(p)
    assert all(len(parents) == 1 for parents in expanded.values())
