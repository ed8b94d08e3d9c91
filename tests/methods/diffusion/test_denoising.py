"""The denoising loop: its reductions, its statistics, its batches, and what its contract catches."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import ClassVar

import pytest
import torch

from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.trace import EditedEvent
from polydec.core.types import Draft, Exactness, ScoreRequest, TextEdit
from polydec.lab.testing.check_unmasker import (
    PROMPT,
    check_canvas_decoder,
    check_joint,
    check_refresh,
    check_unmasker,
)
from polydec.lab.testing.enumerate import law_of, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyBoard, ToyDenoiser
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.endings import FullLengthEnding, PredictedEnding
from polydec.methods.diffusion.loop.events import UnmaskedEvent
from polydec.methods.diffusion.loop.free_drafts import FreeDraftDenoising
from polydec.methods.diffusion.loop.guided import GuidedDenoising
from polydec.methods.diffusion.loop.joint import JointDenoising
from polydec.methods.diffusion.loop.known_tokens import BlockTokens
from polydec.methods.diffusion.loop.prompted import PromptGuidedDenoiser
from polydec.methods.diffusion.loop.stats import DenoiseStats
from polydec.methods.diffusion.loop.types import (
    KnownTokenLaw,
    UnmaskerView,
    best_indices,
    canvas_with_edit,
    gap_positions,
    pass_quota,
    row_entropy,
)
from polydec.methods.diffusion.refreshes import exact_refresh
from polydec.methods.diffusion.refreshes.blockwise import BlockwiseRefresh
from polydec.methods.diffusion.refreshes.delayed import DelayedRefresh
from polydec.methods.diffusion.refreshes.dual import DualRefresh
from polydec.methods.diffusion.refreshes.frozen import FrozenRefresh
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.refreshes.prefix import PrefixRefresh
from polydec.methods.diffusion.refreshes.window import WindowRefresh
from polydec.methods.diffusion.unmaskers.agreement import AgreementUnmasker
from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker
from polydec.methods.diffusion.unmaskers.coherent import CoherentUnmasker, by_probability
from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker
from polydec.methods.diffusion.unmaskers.credit import CreditUnmasker
from polydec.methods.diffusion.unmaskers.early_commit import EarlyCommitUnmasker
from polydec.methods.diffusion.unmaskers.entropy import EntropyUnmasker
from polydec.methods.diffusion.unmaskers.entropy_threshold import EntropyThresholdUnmasker
from polydec.methods.diffusion.unmaskers.factor import FactorUnmasker
from polydec.methods.diffusion.unmaskers.filtered import FilteredUnmasker
from polydec.methods.diffusion.unmaskers.in_order import InOrderUnmasker
from polydec.methods.diffusion.unmaskers.left_to_right import LeftToRightUnmasker
from polydec.methods.diffusion.unmaskers.local import LocalLeapUnmasker
from polydec.methods.diffusion.unmaskers.margin import MarginUnmasker
from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.models.learned.kinds import filter as filters
from reasoned import Reasoned

FILTER = filters.examples(ToyDenoiser(MarkovChainNetwork(0)).vocab, 4, 4)[0]


def rng():
    return Rng.of_choice(0)


def said(
    unmasker, seed, *, block=4, shapers=(), refresh=None, length=14, sharp=2.0, eos=-1, free=False
):
    """The edits of a run: what was written when."""
    events = []
    decoder = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(seed, 6, sharp, free=free), eos),
        unmasker,
        refresh or FullRefresh(),
        block,
        shapers,
    )
    run_coroutines([answer_one(decoder, Request(PROMPT, length, seed=seed), on=events.append)])
    return [e.edit.write for e in events if isinstance(e, EditedEvent) and e.edit.write]


def same(a, b, **how):
    return all(
        said(a, seed, shapers=s, **how) == said(b, seed, shapers=s, **how)
        for seed in range(12)
        for s in ((), (GreedyRule(),), (TemperatureRule(0.6),))
    )


@pytest.mark.parametrize(
    "a, b",
    [
        (ThresholdUnmasker(1.1), ConfidenceUnmasker()),
        (FactorUnmasker(0.0), ConfidenceUnmasker()),
        (CreditUnmasker(0.7, alpha=0.0), ThresholdUnmasker(0.7)),
        (LocalLeapUnmasker(0.7, 0.4, 0), ThresholdUnmasker(0.7)),
        (LocalLeapUnmasker(0.7, 0.7, 9), ThresholdUnmasker(0.7)),
        (ThresholdUnmasker(0.0), ConfidenceUnmasker(1)),
        (EarlyCommitUnmasker(ConfidenceUnmasker(), *[float("inf")] * 3), ConfidenceUnmasker()),
        (EarlyCommitUnmasker(ThresholdUnmasker(0.8), *[float("inf")] * 3), ThresholdUnmasker(0.8)),
        (LocalLeapUnmasker(0.7, 0.0, 99), LocalLeapUnmasker(0.7, -1.0, 4)),
    ],
    ids=str,
)
def test_limits(a, b):
    assert same(a, b)


@pytest.mark.parametrize(
    "unmasker",
    [
        ConfidenceUnmasker(),
        MarginUnmasker(),
        EntropyUnmasker(),
        AtRandomUnmasker(),
        ThresholdUnmasker(),
        FactorUnmasker(),
        CreditUnmasker(),
        LocalLeapUnmasker(),
    ],
    ids=str,
)
def test_blocks_of_one_go_left_to_right(unmasker):
    for seed in range(6):
        got = said(unmasker, seed, block=1, shapers=(GreedyRule(),))
        assert got == said(LeftToRightUnmasker(), seed, block=1, shapers=(GreedyRule(),)) and all(
            len(w) == 1 for w in got
        )
        assert [w[0][0] for w in got] == list(range(3, 17))


def test_one_step_is_one_shot_argmax():
    for seed in range(6):
        chain = MarkovChainNetwork(seed, 6, 2.0)
        canvas = (*PROMPT, *(None,) * 14)
        want = tuple((i, int(chain.position_law(canvas, i).argmax())) for i in range(3, 17))
        for unmasker in (
            ConfidenceUnmasker(1),
            EntropyUnmasker(1),
            AtRandomUnmasker(1),
            EarlyCommitUnmasker(ConfidenceUnmasker(), *[-float("inf")] * 3),
            ThresholdUnmasker(0),
        ):
            assert said(unmasker, seed, block=0, shapers=(GreedyRule(),)) == [want]


def test_margin_and_entropy_are_confidence_for_two_tokens():
    for seed in range(8):
        runs = []
        for unmasker in (ConfidenceUnmasker(2), MarginUnmasker(2), EntropyUnmasker(2)):
            events = []
            decoder = DenoisingDecoder(
                ToyDenoiser(MarkovChainNetwork(seed, 2)),
                unmasker,
                FullRefresh(),
                5,
                (GreedyRule(),),
            )
            run_coroutines([answer_one(decoder, Request(PROMPT, 13), on=events.append)])
            runs.append([e.edit.write for e in events if isinstance(e, EditedEvent)])
        assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("n", range(12))
@pytest.mark.parametrize("steps", range(1, 9))
def test_quotas_are_even_and_add_up(n, steps):
    q = [pass_quota(n, steps, i) for i in range(steps)]
    assert sum(q) == n and q == sorted(q, reverse=True) and max(q) - min(q) <= 1


@pytest.mark.parametrize("steps, passes", [(1, 4), (2, 8), (3, 12), (9, 14), (0, 14)])
def test_steps_are_passes_of_a_block(steps, passes):
    """Blocks of 4, 4, 4 and 2: more steps than gaps cost no more passes."""
    want = {(3, 12): 3 * 3 + 2, (9, 14): 14}.get((steps, passes), min(passes, 14))
    assert len(said(ConfidenceUnmasker(steps), 1)) == want


def look(sure, positions=None, block=None, size=5):
    """Rows of these confidences, all of token 0."""
    c = torch.tensor(sure, dtype=torch.float64)
    rows = tuple(positions or range(10, 10 + len(sure)))
    rest = ((1 - c) / (size - 1))[:, None].expand(-1, size - 1)
    canvas = tuple(None if i in rows else 0 for i in range(max(rows) + 3))
    return UnmaskerView(
        canvas,
        block or range(rows[0], rows[-1] + 1),
        rows,
        torch.cat([c[:, None], rest], 1).log(),
        (GreedyRule(),),
    )


def chosen(unmasker, seen, state=None):
    from polydec.core.rng import Rng

    state = (
        unmasker.enter_block(unmasker.start_state(seen.canvas), len(seen.rows))
        if state is None
        else state
    )
    return {p for p, _ in unmasker.choose_edit(state, seen, Rng.of_choice(0))[0].write}


def test_factor_against_brute_force():
    g = torch.Generator().manual_seed(3)
    for _ in range(200):
        n = int(torch.randint(1, 9, (), generator=g))
        sure = (0.3 + 0.7 * torch.rand(n, generator=g, dtype=torch.float64) ** 0.3).tolist()
        sizes = []
        for f in (0.0, 0.5, 0.9, 1.0, 1.4, 3.0):
            ranked = sorted(sure, reverse=True)
            want = max(
                (
                    k
                    for k in range(1, n + 1)
                    if all((j + 1) * (1 - ranked[j - 1]) <= f + 1e-12 for j in range(1, k + 1))
                ),
                default=1,
            )
            got = chosen(FactorUnmasker(f), look(sure))
            assert len(got) == want and got == {
                10 + i for i in best_indices(torch.tensor(sure), want)
            }
            sizes.append(want)
        assert sizes == sorted(sizes)


def test_factor_does_not_take_a_last_one_that_fails():
    assert chosen(FactorUnmasker(1.0), look([0.99, 0.99, 0.3])) == {10, 11}


def test_local_on_a_row_made_by_hand():
    sure = [0.5, 0.8, 0.8, 0.95, 0.76, 0.3, 0.8, 0.8]
    assert chosen(LocalLeapUnmasker(0.9, 0.75, 2), look(sure)) == {11, 12, 13, 14}
    assert chosen(LocalLeapUnmasker(0.9, 0.75, 3), look(sure)) == {11, 12, 13, 14, 16}
    assert chosen(LocalLeapUnmasker(0.96, 0.75, 3), look(sure)) == {
        13
    }  # no anchor: the surest alone
    assert chosen(LocalLeapUnmasker(0.9, 0.75, 1), look([0.95, 0.8, 0.1, 0.8, 0.91])) == {
        10,
        11,
        13,
        14,
    }
    far = look([0.95, 0.8, 0.8], positions=(10, 13, 15))
    assert chosen(LocalLeapUnmasker(0.9, 0.75, 3), far) == {
        10,
        13,
    }  # distances count positions, not gaps


def test_local_holds_the_threshold_and_is_held_by_the_relaxed_one():
    g = torch.Generator().manual_seed(5)
    for _ in range(100):
        sure = (0.4 + 0.6 * torch.rand(9, generator=g, dtype=torch.float64)).tolist()
        tight, loose = (
            chosen(ThresholdUnmasker(0.9), look(sure)),
            chosen(ThresholdUnmasker(0.7), look(sure)),
        )
        assert tight <= chosen(LocalLeapUnmasker(0.9, 0.7, 2), look(sure)) <= loose | tight


def test_threshold_takes_equal_confidence_and_the_block_only():
    assert chosen(ThresholdUnmasker(0.75), look([0.75, 0.2, 0.8])) == {10, 12}
    assert chosen(ThresholdUnmasker(0.5), look([0.75, 0.7, 0.8], block=range(10, 12))) == {10, 11}
    assert chosen(ThresholdUnmasker(0.99), look([0.75, 0.8, 0.8])) == {11}  # a tie: the first


def test_credit_of_constant_predictions_is_geometric():
    from polydec.core.rng import Rng

    rule, q = CreditUnmasker(2.0, alpha=0.7, gamma=0.2, beta=0.8), 0.6
    seen, state = look([q, 0.9]), rule.enter_block(rule.start_state(()), 2)
    for n in range(1, 6):
        edit, state = rule.choose_edit(state, seen, Rng.of_choice(0))
        assert edit.write == ((11, 0),)
        assert state[10] == {0: pytest.approx(q**0.2 * (1 - 0.8**n) / 0.2)}
    assert rule.enter_block(state, 3) == {}


def test_credit_lets_a_stable_token_through_and_not_a_flickering_one():
    from polydec.core.rng import Rng

    rule = CreditUnmasker(0.8, alpha=1.0)
    stable, flicker = look([0.6, 0.95]), look([0.6, 0.95])
    flicker = replace(flicker, logw_RV=flicker.logw_RV.roll(1, 1))
    state = rule.enter_block(rule.start_state(()), 2)
    for _ in range(4):
        edit, state = rule.choose_edit(state, stable, Rng.of_choice(0))
    assert {p for p, _ in edit.write} == {10, 11}
    state = rule.enter_block(rule.start_state(()), 2)
    for i in range(4):
        edit, state = rule.choose_edit(state, (stable, flicker)[i % 2], Rng.of_choice(0))
    assert {p for p, _ in edit.write} == {11}


def test_dense_credits_agree():
    """The sparse form against a dense matrix, over random laws."""
    from polydec.core.rng import Rng

    g, rule = torch.Generator().manual_seed(1), CreditUnmasker(0.5, alpha=0.9, gamma=0.4, beta=0.7)
    dense, state = torch.zeros(4, 6, dtype=torch.float64), rule.enter_block(rule.start_state(()), 4)
    for n in range(6):
        logw = torch.randn(4, 6, generator=g, dtype=torch.float64) * 1.5
        seen = UnmaskerView(
            (0, None, None, None, None), range(1, 5), (1, 2, 3, 4), logw, (GreedyRule(),), n
        )
        p = logw.softmax(-1)
        dense = dense * (0.7 if n else 1.0)
        q, v = p.max(-1)
        dense[torch.arange(4), v] += q**0.4
        c, x = (logw + 0.9 * dense.log1p()).softmax(-1).max(-1)
        want = {i + 1: int(x[i]) for i in range(4) if c[i] >= 0.5 or i == int(c.argmax())}
        edit, state = rule.choose_edit(state, seen, Rng.of_choice(0))
        assert dict(edit.write) == want


def test_early_commit_fills_all_and_sooner_for_lower_bounds():
    passes = []
    for bound in (float("inf"), 3.0, 1.5, 0.5, -1.0):
        writes = [
            said(
                EarlyCommitUnmasker(ConfidenceUnmasker(), bound, bound, bound),
                s,
                block=4,
                shapers=(GreedyRule(),),
            )
            for s in range(8)
        ]
        assert all(sum(map(len, w)) == 14 for w in writes)
        passes.append([len(w) for w in writes])
    assert all(a >= b for more, less in pairwise(passes) for a, b in zip(more, less))
    assert (
        passes[0] == [14] * 8 and passes[-1] == [1] * 8 and passes[2] not in (passes[0], passes[-1])
    )


def test_early_commit_looks_at_the_region_alone():
    """Two clear gaps behind three unclear ones: only where the answer stands counts, wherever an end is predicted, and without
    a gap in it the answer is known."""
    seen = look([0.3, 0.3, 0.3, 0.999, 0.999])
    bounds = (6.0, 6.0, 6.0)

    def filled(region, **fields):
        rule = EarlyCommitUnmasker(ConfidenceUnmasker(), *bounds, region=region)
        return len(chosen(rule, replace(seen, **fields)))

    assert [filled(r) for r in (None, range(3, 5), range(2, 5), range(4, 9))] == [1, 5, 1, 5]
    # An end in front of the region does not take it away, as it does the gaps of no region.
    logw = seen.logw_RV.clone()
    logw[0] = logw[0].roll(1)
    assert filled(range(3, 5), logw_RV=logw, ends=frozenset({1})) == 5
    # Positions are counted from the first gap that the answer had, not from the first of this pass.
    rule = EarlyCommitUnmasker(ConfidenceUnmasker(), *bounds, region=range(3, 5))
    state = rule.enter_block(rule.start_state(seen.canvas), 5)
    canvas = list(seen.canvas)
    canvas[10] = canvas[13] = canvas[14] = 0
    later = replace(seen.only_rows([1, 2]), canvas=tuple(canvas))
    assert chosen(rule, later, state) == {11, 12}
    with pytest.raises(ValueError, match="region begins at 5: the answer has 5 positions"):
        EarlyCommitUnmasker(ConfidenceUnmasker(), region=range(5, 9)).start_state(seen.canvas)


def test_the_region_of_prophet_is_an_option():
    """One that is sure early ends the passes early; the same span elsewhere does so later or at another text."""
    model = ToyDenoiser(MarkovChainNetwork(3, 5, 2.0))
    bounds = {"early": 1.5, "middle": 1.5, "late": 1.5, "block": 4}
    passes = [
        prompted(build("prophet", model, None, {**bounds, **region})[0], 1).stats.passes
        for region in ({}, *({"region": at, "span": 2} for at in (0, 5, 11)))
    ]
    assert len(set(passes)) >= 3, passes
    one, more = (
        prompted(build("prophet", model, None, {**bounds, "region": 5, "span": span})[0], 1).stats
        for span in (1, 9)
    )
    assert one.passes != more.passes


def test_known_tokens_of_the_region_count_where_they_are_to():
    """The mean goes over all positions of the region, with what the model says at its tokens in the same pass."""
    seen = look([0.3, 0.3, 0.3, 0.999, 0.999])
    canvas = list(seen.canvas)
    canvas[13] = 0
    # One gap and one token of the region are left: the gap is clear, and the token is what is told.
    later = replace(seen.only_rows([0, 1, 2, 4]), canvas=tuple(canvas))

    def filled(counted, clear):
        rule = EarlyCommitUnmasker(
            ConfidenceUnmasker(), 6.0, 6.0, 6.0, region=range(3, 5), counted=counted
        )
        state = rule.enter_block(rule.start_state(seen.canvas), 5)
        assert list(rule.known_positions(state, range(10, 12))) == ([13, 14] if counted else [])
        told = {13: KnownTokenLaw(0.5, clear)} if counted else {}
        return len(chosen(rule, replace(later, written=told), state))

    assert [filled(False, 0.0), filled(True, 9.0), filled(True, 0.5)] == [4, 4, 1]


def test_prophet_asks_for_the_laws_at_the_tokens_of_its_region():
    """It takes more passes than where the region's gaps alone count: what stands there is less clear to this model."""
    model = ToyDenoiser(MarkovChainNetwork(3, 5, 2.0))
    bounds = {"early": 2.0, "middle": 2.0, "late": 2.0, "block": 4}
    passes = {
        (at, counted): prompted(
            build("prophet", model, None, {**bounds, "region": at, "span": 4, "counted": counted})[
                0
            ],
            1,
        ).stats.passes
        for at in (0, 4, 8)
        for counted in (False, True)
    }
    assert any(passes[at, False] != passes[at, True] for at in (0, 4, 8)), passes


def test_early_commit_looks_up_to_the_first_end():
    """Two clear gaps, an end, and unclear ones behind: with the end known to end, what lies behind does not count."""
    seen = look([0.999, 0.999, 0.999, 0.3, 0.3])
    logw = seen.logw_RV.clone()
    logw[2] = logw[2].roll(1)  # token 1 is an end
    rule = EarlyCommitUnmasker(ConfidenceUnmasker(), 6.0, 6.0, 6.0)
    assert chosen(rule, replace(seen, logw_RV=logw, ends=frozenset({1}))) == {10, 11, 12, 13, 14}
    assert len(chosen(rule, replace(seen, logw_RV=logw))) == 1
    assert (
        len(
            chosen(
                rule, replace(seen, canvas=(*seen.canvas, None), logw_RV=logw, ends=frozenset({1}))
            )
        )
        == 1
    )


@pytest.mark.parametrize("passes", [1, 4, 7])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.75, 1.0])
def test_early_commit_counts_the_pass_that_it_looks_at(passes, share):
    """The bound falls with the first pass that brings what is done to that share of what is expected."""
    inf, want = float("inf"), next(k for k in range(1, passes + 1) if k / passes >= share)
    for bounds, shares in (
        ((inf, -inf, -inf), (share, 2.0)),
        ((inf, inf, -inf), (0.0, share)),
    ):
        rule = EarlyCommitUnmasker(ConfidenceUnmasker(), *bounds, *shares, passes)
        assert len(said(rule, 3, block=0, shapers=(GreedyRule(),))) == want
    rule = EarlyCommitUnmasker(
        ConfidenceUnmasker(), inf, -inf, -inf, 0.5
    )  # an answer of 14 is expected to take 14
    assert len(said(rule, 3, block=0, shapers=(GreedyRule(),))) == 7


def test_parallel_writes_cost_the_total_correlation():
    """Two gaps in one pass draw from the product of their marginals: the law is off by what that is off."""
    for seed in range(4):
        chain = MarkovChainNetwork(seed)
        joint = chain.joint_law(PROMPT, 2)
        decoder = DenoisingDecoder(ToyDenoiser(chain), AtRandomUnmasker(1), FullRefresh())
        got = law_of(lambda rng, d=decoder: answer_one(d, Request(PROMPT, 2), rng))
        marginal = [
            {x: sum(p for t, p in joint.items() if t[i] == x) for x in range(3)} for i in (0, 1)
        ]
        product = {(a, b): marginal[0][a] * marginal[1][b] for a in range(3) for b in range(3)}
        assert text_law_distance(got, product) < 1e-12 < 0.01 < text_law_distance(got, joint)
        free = MarkovChainNetwork(seed, free=True)
        decoder = DenoisingDecoder(ToyDenoiser(free), AtRandomUnmasker(1), FullRefresh())
        assert (
            text_law_distance(
                law_of(lambda rng, d=decoder: answer_one(d, Request(PROMPT, 2), rng)),
                free.joint_law(PROMPT, 2),
            )
            < 1e-12
        )


def test_gaps_behind_an_end_are_left_alone():
    writes = [
        said(ConfidenceUnmasker(), s, block=0, eos=5, length=20, sharp=1.0) for s in range(20)
    ]
    for edits in writes:
        canvas, ends = (*PROMPT, *(None,) * 20), []
        for w in edits:
            assert not ends or all(p < min(ends) for p, _ in w)
            canvas = canvas_with_edit(canvas, TextEdit(write=w))
            ends += [p for p, x in w if x == 5]
        first = min(ends, default=len(canvas) - 1)
        assert not gap_positions(canvas[: first + 1])
    assert any(sum(map(len, w)) < 20 for w in writes)


def test_stats_and_events_count_the_same():
    events = []
    decoder = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(3, 6, 2.0)), ThresholdUnmasker(0.6), DualRefresh(), 4
    )
    out = run_coroutines([answer_one(decoder, Request(PROMPT, 14), on=events.append)])[0]
    told = [e for e in events if isinstance(e, UnmaskedEvent)]
    s = out.stats
    assert (
        s.passes == len(told)
        and s.unmasked == 14 == sum(len(e.position) for e in told)
        and s.blocks == 4
    )
    assert s.fed == sum(b - a for a, b in (e.fed for e in told)) and s.most == max(
        len(e.position) for e in told
    )
    assert [e.step for e in told] == list(range(s.passes)) and told[-1].left == 0
    assert s.metrics()["positions_per_pass"] == s.fed / s.passes
    assert s.plus_stats(DenoiseStats(2, 1, 3, 4, 1, 99)) == DenoiseStats(
        s.passes + 2, s.first + 1, 17, s.fed + 4, 5, 99
    )


def test_fed_positions_by_rule():
    """Blocks of 4 in a canvas of 3 + 8, one gap a pass: all; all but what stands before; the block alone."""
    fed = {}
    for refresh in (FullRefresh(), PrefixRefresh(), DualRefresh()):
        decoder = DenoisingDecoder(
            ToyDenoiser(MarkovChainNetwork(3)), LeftToRightUnmasker(), refresh, 4
        )
        fed[type(refresh)] = run_coroutines([answer_one(decoder, Request(PROMPT, 8))])[0].stats.fed
    assert fed == {
        FullRefresh: 88,
        PrefixRefresh: 2 * 11 + 3 * 8 + 3 * 4,
        DualRefresh: 2 * 11 + 6 * 4,
    }


def test_requests_share_passes():
    chain = MarkovChainNetwork(5, 6)
    calls = []
    forward = chain.forward
    chain.forward = lambda queries: calls.append(len(queries)) or forward(queries)
    decoder = DenoisingDecoder(ToyDenoiser(chain), ConfidenceUnmasker(), FullRefresh(), 4)
    run_coroutines(
        [run_decoder(decoder, Request(PROMPT[:k], 6 + k, n=2)) for k in (1, 2, 3)], Scheduler()
    )
    assert calls == [6] * 7 + [4] + [2]


def test_an_approximate_refresh_promises_nothing():
    d = ToyDenoiser(MarkovChainNetwork(1))
    assert DenoisingDecoder(d, AtRandomUnmasker(), FullRefresh()).exactness is Exactness.LAW
    assert (
        DenoisingDecoder(d, AtRandomUnmasker(2), FullRefresh()).exactness is Exactness.APPROXIMATE
    )
    assert (
        DenoisingDecoder(d, AtRandomUnmasker(), DualRefresh(), 4, exact=False).exactness
        is Exactness.APPROXIMATE
    )


# mutants: each breaks one promise of the contract


@dataclass(frozen=True)
class _Mutant:
    everywhere: ClassVar[bool] = False
    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE

    def start_state(self, canvas):
        return None

    def enter_block(self, state, count):
        return None

    def choose_edit(self, state, look, rng):
        return self.edit(look.inside_block(), rng), None


class Nothing_(_Mutant):
    def edit(self, look, rng):
        return TextEdit()


class Outside(_Mutant):
    def edit(self, look, rng):
        return (
            TextEdit(write=((len(look.canvas) - 1, 0),))
            if look.canvas[-1] is None
            else look.fill_edit([0], look.draw_tokens(rng))
        )


class Known(_Mutant):
    def edit(self, look, rng):
        return TextEdit(write=((look.rows[0], look.draw_token(0, rng)), (look.rows[0] - 1, 1)))


class Unlikely(_Mutant):
    def edit(self, look, rng):
        return look.fill_edit([0], {0: int(look.logw_RV[0, :-1].argmin())})


class Writes(_Mutant):
    def edit(self, look, rng):
        look.logw_RV.add_(1.0)
        return look.fill_edit([0], look.draw_tokens(rng))


class Mask(_Mutant):
    def edit(self, look, rng):
        return look.fill_edit([0], {0: look.logw_RV.shape[1] - 1})


@dataclass(frozen=True)
class Surest:
    """Confidence order under a promise of the law."""

    everywhere: ClassVar[bool] = False
    exactness: ClassVar[Exactness] = Exactness.LAW
    start_state, enter_block, choose_edit, steps = (
        ConfidenceUnmasker.start_state,
        ConfidenceUnmasker.enter_block,
        ConfidenceUnmasker.choose_edit,
        0,
    )


@dataclass(frozen=True)
class Twice:
    """Two gaps a pass under a promise of the law."""

    everywhere: ClassVar[bool] = False
    exactness: ClassVar[Exactness] = Exactness.LAW
    start_state, enter_block, choose_edit, steps = (
        AtRandomUnmasker.start_state,
        AtRandomUnmasker.enter_block,
        AtRandomUnmasker.choose_edit,
        2,
    )


class Moody(_Mutant):
    """The first gap or the last by turns: not a function of what it is given."""

    def edit(self, look, rng):
        MOOD.append(0)
        return look.fill_edit([-len(MOOD) % 2 * (len(look.rows) - 1)], look.draw_tokens(rng))


MOOD = []


A_FAULT = r"^(?s:(?!.*does not exercise))"
"""What a contract says of a fault; not that it saw too little."""


@pytest.mark.parametrize(
    "mutant",
    [Nothing_(), Outside(), Known(), Unlikely(), Writes(), Mask(), Surest(), Twice(), Moody()],
    ids=lambda m: type(m).__name__,
)
def test_mutants_are_caught(mutant):
    with pytest.raises((AssertionError, ValueError), match=A_FAULT):
        check_unmasker(mutant)


def test_the_joint_law_of_orders():
    for unmasker in (AtRandomUnmasker(), LeftToRightUnmasker()):
        check_joint(
            lambda d, u=unmasker: DenoisingDecoder(d, u, FullRefresh(), 2), laws=2, length=4
        )
    for unmasker in (AtRandomUnmasker(2), ConfidenceUnmasker(), ThresholdUnmasker(0.5)):
        with pytest.raises(AssertionError, match="off by"):
            check_joint(
                lambda d, u=unmasker: DenoisingDecoder(d, u, FullRefresh(), 0), laws=2, length=3
            )


@dataclass(frozen=True)
class Fed:
    """A rule made of a function of (canvas, before, block, step)."""

    fed_positions: object


@pytest.mark.parametrize(
    "feed",
    [
        lambda canvas, before, block, step: range(len(canvas) - 1, -1, -1),
        lambda canvas, before, block, step: range(len(canvas) + 1),
        lambda canvas, before, block, step: range(block.start, len(canvas)),
        lambda canvas, before, block, step: range(block.start if before else len(canvas)),
        lambda canvas, before, block, step: (
            range(block.start, block.start + 1 + len(block) // 2) if before else range(len(canvas))
        ),
        lambda canvas, before, block, step: (
            [i for i in block if canvas[i] is None][:1] if before else range(len(canvas))
        ),
    ],
    ids=["descends", "leaves the canvas", "no prompt", "no gap", "half a block", "one gap"],
)
def test_rules_that_feed_too_little_or_too_much_are_caught(feed):
    with pytest.raises(AssertionError, match=A_FAULT):
        check_refresh(Fed(feed))


def test_a_rule_that_feeds_everything_says_so():
    with pytest.raises(AssertionError, match=r"Fed does not exercise .* 0 reused"):
        check_refresh(Fed(lambda canvas, before, block, step: range(len(canvas))))


def test_an_unmasker_that_fills_one_gap_a_pass_says_so():
    one, all_at_once = (Reasoned(LeftToRightUnmasker(steps), {}) for steps in (0, 1))
    with pytest.raises(AssertionError, match=r"does not exercise .* 0 parallel"):
        check_unmasker(one)
    with pytest.raises(AssertionError, match=r"does not exercise .* 0 masked again"):
        check_unmasker(all_at_once)
    with pytest.raises(AssertionError, match=r"DenoisingDecoder does not exercise .* 0 parallel"):
        check_canvas_decoder(lambda d: DenoisingDecoder(d, one, FullRefresh(), 5))


def test_an_unmasker_that_fills_several_gaps_a_pass_must_not_declare_one():
    untrue = Reasoned(LeftToRightUnmasker(2), LeftToRightUnmasker().unexercised)
    with pytest.raises(AssertionError, match="declares that there are none: it fills one gap"):
        check_unmasker(untrue)
    with pytest.raises(AssertionError, match="declares that there are none: it fills one gap"):
        check_canvas_decoder(lambda d: DenoisingDecoder(d, untrue, FullRefresh(), 5))


@pytest.mark.parametrize("broken", ["twice", "leaves its board open"])
def test_the_loop_is_watched(broken, monkeypatch):
    """Faults of a loop that the contract of decoders must see."""
    if broken == "twice":

        def token(self, i, rng):
            return rng.child_stream("token", self.rows[0]).draw_categorical(self.shaped_RV[i].exp())

        monkeypatch.setattr(UnmaskerView, "draw_token", token)
    else:
        monkeypatch.setattr(ToyBoard, "close", lambda self: None)
    with pytest.raises((AssertionError, RuntimeError), match=A_FAULT):
        check_canvas_decoder(lambda d: DenoisingDecoder(d, ConfidenceUnmasker(2), FullRefresh(), 5))


# what a pass feeds, and what an answer costs


def prompted(decoder, seed, length=14, **fields):
    return run_coroutines([answer_one(decoder, Request(PROMPT, length, seed=seed, **fields))])[0]


@pytest.mark.parametrize("own", [0, 4])
@pytest.mark.parametrize(
    "unmasker",
    [ConfidenceUnmasker(), CreditUnmasker(0.9), AtRandomUnmasker(), ThresholdUnmasker(0.8)],
    ids=str,
)
def test_free_drafts_write_what_the_base_writes_in_fewer_passes(unmasker, own):
    """For every seed and law of chance; one canvas a pass is the base, pass for pass."""
    saved = 0
    for seed in range(8):
        for shapers in ((), (GreedyRule(),), (TemperatureRule(0.5),)):
            base = DenoisingDecoder(
                ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0), 4, own),
                unmasker,
                exact_refresh(own),
                6,
                shapers,
            )
            want = prompted(base, seed)
            got = {d: prompted(FreeDraftDenoising(base, d), seed) for d in (1, 3, 6)}
            assert (
                all(g.token_ids == want.token_ids for g in got.values())
                and got[1].stats == want.stats
            )
            assert got[6].stats.passes <= got[3].stats.passes <= want.stats.passes
            saved += want.stats.passes - got[6].stats.passes
    assert saved > 20


@pytest.mark.parametrize("own", [0, 4])
@pytest.mark.parametrize("threshold", [2.0, 0.6])
def test_eager_drafts_go_over_the_end_of_a_block(own, threshold):
    """The same text; blocks of two hold no four guesses, and those behind them do."""
    passes = [0, 0, 0]
    for seed in range(8):
        for shapers in ((), (GreedyRule(),)):
            model = ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0, free=seed % 2 == 0), 4, own)
            base = DenoisingDecoder(
                model, ThresholdUnmasker(threshold), exact_refresh(own), 2, shapers
            )
            outs = [
                prompted(d, seed)
                for d in (base, FreeDraftDenoising(base, 4), FreeDraftDenoising(base, 4, True))
            ]
            assert len({o.token_ids for o in outs}) == 1
            passes = [n + o.stats.passes for n, o in zip(passes, outs, strict=True)]
    assert passes[2] < 0.8 * passes[1] < passes[0]


def test_eager_drafts_of_independent_laws_fill_four_a_pass():
    """Whatever the blocks; one canvas a pass is the base, text and passes."""
    base = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(2, 5, 2.0, free=True)),
        ThresholdUnmasker(2),
        FullRefresh(),
        2,
        (GreedyRule(),),
    )
    out = prompted(FreeDraftDenoising(base, 4, True), 0)
    assert out.stats.passes == 5 and out.stats.unmasked == 14  # 1, then 4, 4, 4 and 1
    assert prompted(FreeDraftDenoising(base, 1, True), 0).stats == prompted(base, 0).stats
    with pytest.raises(ValueError, match="eager is set beside a cache"):
        build("freedave", base.denoiser, None, {"eager": True, "cache": 2})
    with pytest.raises(ValueError, match="look at their block alone"):
        FreeDraftDenoising(
            replace(base, unmasker=EarlyCommitUnmasker(ConfidenceUnmasker(), 1, 1, 1)), 4, True
        )


@pytest.mark.parametrize("threshold", [2.0, 0.7, 0.4])
def test_free_drafts_against_a_reference(threshold):
    """The published loop on one block: nested drafts of one more of the surest tokens each; the furthest draft that is what
    the draft before it leads to stands, and its laws give the next drafts."""

    def step(chain, canvas, laws):
        sure = {i: float(p_V.max()) for i, p_V in laws.items() if canvas[i] is None}
        first = max(sure, key=sure.get)
        chosen = {first, *(i for i, c in sure.items() if c >= threshold)}
        return tuple(int(laws[i].argmax()) if i in chosen else x for i, x in enumerate(canvas))

    def laws_of(chain, canvas):
        return {
            i: chain.position_law(canvas, i).exp() / chain.position_law(canvas, i).exp().sum()
            for i in gap_positions(canvas)
        }

    for seed in range(6):
        chain, drafts, passes = MarkovChainNetwork(seed, 5, 2.0), 4, 1
        laws = laws_of(chain, (*PROMPT, *(None,) * 14))
        canvas = step(chain, (*PROMPT, *(None,) * 14), laws)
        while gap_positions(canvas):
            some = [canvas]
            while len(some) < drafts and gap_positions(new := step(chain, some[-1], laws)):
                some.append(new)
            seen, passes, at = [laws_of(chain, c) for c in some], passes + 1, 0
            while True:
                laws, target = seen[at], step(chain, some[at], seen[at])
                if target not in some[at + 1 :]:
                    break
                at = some.index(target)
            canvas = target
        base = DenoisingDecoder(
            ToyDenoiser(chain), ThresholdUnmasker(threshold), FullRefresh(), 0, (GreedyRule(),)
        )
        out = prompted(FreeDraftDenoising(base, drafts), seed)
        assert (out.token_ids, out.stats.passes) == (canvas[3:], passes), seed


def test_subset_acceptance_against_a_reference():
    """FreeDave++ on one block: the first draft is what reaches the threshold, each further one has the next surest token; a
    draft stands that is a part of what the draft before it leads to. It takes fewer passes than equal drafts do."""

    def draft_step(laws, canvas, bar):
        sure = {i: float(laws[i].max()) for i in gap_positions(canvas)}
        chosen = {max(sure, key=sure.get), *(i for i, c in sure.items() if c >= bar)}
        return tuple(int(laws[i].argmax()) if i in chosen else x for i, x in enumerate(canvas))

    def laws_of(chain, canvas):
        out = {i: chain.position_law(canvas, i).exp() for i in gap_positions(canvas)}
        return {i: p_V / p_V.sum() for i, p_V in out.items()}

    passes_of = Counter()
    other_texts = 0
    for seed in range(12):
        chain, drafts, passes = MarkovChainNetwork(seed, 5, 2.0), 4, 1
        empty = (*PROMPT, *(None,) * 14)
        laws = laws_of(chain, empty)
        canvas = draft_step(laws, empty, 0.5)
        while gap_positions(canvas):
            some = [canvas]
            while len(some) < drafts and gap_positions(new := draft_step(laws, some[-1], 2.0)):
                some.append(new)
            seen, passes, at = [laws_of(chain, c) for c in some], passes + 1, 0
            while True:
                laws = seen[at]
                canvas = draft_step(laws, some[at], 0.5)
                parts = [
                    j
                    for j in range(at + 1, len(some))
                    if all(x is None or x == y for x, y in zip(some[j], canvas, strict=True))
                ]
                if not parts:
                    break
                at = parts[-1]
        base = DenoisingDecoder(
            ToyDenoiser(chain), ThresholdUnmasker(0.5), FullRefresh(), 0, (GreedyRule(),)
        )
        part = FreeDraftDenoising(base, drafts, subset=True)
        assert part.exactness is Exactness.APPROXIMATE
        out, equal = prompted(part, seed), prompted(FreeDraftDenoising(base, drafts), seed)
        assert (out.token_ids, out.stats.passes) == (canvas[3:], passes), seed
        passes_of["subset"] += passes
        passes_of["equal"] += equal.stats.passes
        other_texts += out.token_ids != equal.token_ids
    assert passes_of["subset"] < passes_of["equal"] and other_texts


@pytest.mark.parametrize("eager", [False, True])
def test_subset_acceptance_changes_nothing_where_one_token_is_written_a_pass(eager):
    """And one canvas a pass is the base, at any threshold; blocks and ends are those of the base."""
    for seed in range(6):
        for own in (0, 4):
            model = ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0), 4, own)
            one = DenoisingDecoder(model, ThresholdUnmasker(2), exact_refresh(own), 3)
            subset = prompted(FreeDraftDenoising(one, 4, eager, True), seed)
            assert subset == prompted(FreeDraftDenoising(one, 4, eager), seed)
            some = replace(one, unmasker=ThresholdUnmasker(0.4))
            alone = prompted(FreeDraftDenoising(some, 1, eager, True), seed)
            assert alone.token_ids == prompted(some, seed).token_ids
            assert alone.stats.passes == prompted(some, seed).stats.passes


def test_guesses_are_of_use_only_where_laws_hang_together():
    """Independent positions: every guess stands. A guess is of the unmasker's own making and costs no pass."""
    base = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(2, 5, 2.0, free=True)),
        ConfidenceUnmasker(),
        FullRefresh(),
        0,
        (GreedyRule(),),
    )
    out = prompted(FreeDraftDenoising(base, 5), 0)
    assert out.stats.passes == 4 and out.stats.unmasked == 14  # 1, then 5, 5 and 3
    assert out.stats.fed == 17 * (1 + 5 + 5 + 3)


@pytest.mark.parametrize("own", [0, 4])
@pytest.mark.parametrize("block", [0, 5])
def test_a_perfect_adjustment_writes_what_a_pass_for_each_edit_writes(block, own):
    """States that become what a pass over the canvas as it is now would give: the text is that of the base, token for token."""

    def oracle(chain):
        def adjust(embed_BTH, state_BTH):
            tokens = [int(x) for x in embed_BTH[0].argmax(-1)]
            canvas = tuple(None if x == chain.size else x for x in tokens)
            out = torch.zeros_like(state_BTH)
            for i in gap_positions(canvas, len(PROMPT)):
                out[0, i, : chain.size] = chain.position_law(canvas, i)[:-1].float()
            return out

        return adjust

    saved = 0
    for seed in range(3):
        for shapers in ((), (GreedyRule(),)):
            model = ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0), -1, own)
            base = DenoisingDecoder(model, EntropyUnmasker(), FullRefresh(), block, shapers)
            want = prompted(base, seed)
            for count in (1, 3, 9):
                got = prompted(JointDenoising(base, oracle(model.network), count), seed)
                assert got.token_ids == want.token_ids, (seed, count)
                saved += want.stats.passes - got.stats.passes
    assert saved > 40


@pytest.mark.parametrize(
    "a, b",
    [
        (CoherentUnmasker(1), EntropyUnmasker()),
        (CoherentUnmasker(count=1, width=1), EntropyUnmasker()),
        (CoherentUnmasker(1, count=4), EntropyUnmasker(1)),
        (CoherentUnmasker(1, steps=3), EntropyUnmasker(3)),
        (CoherentUnmasker(3, 1, steps=4), EntropyUnmasker(4)),
        (AgreementUnmasker(most=1), ConfidenceUnmasker()),
        (EntropyThresholdUnmasker(-1.0), EntropyUnmasker()),
        (EntropyThresholdUnmasker(99.0), EntropyUnmasker(1)),
        (FilteredUnmasker(FILTER, 1.0), ConfidenceUnmasker()),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_limits_of_the_later_rules(a, b):
    assert same(a, b)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_coherence_on_the_schedule_of_the_surest(steps):
    """By probability, without chance, it is llada's schedule for one pass of memory; for more it has as many passes."""
    for seed in range(8):
        now = CoherentUnmasker(1, steps=steps, rank=by_probability)
        want = said(ConfidenceUnmasker(steps), seed, shapers=(GreedyRule(),))
        assert said(now, seed, shapers=(GreedyRule(),)) == want
        more = said(replace(now, depth=3, count=1), seed, shapers=(GreedyRule(),))
        assert [len(w) for w in more] == [len(w) for w in want]


def test_agreement_and_coherence_want_two_passes():
    """Constant laws: one token in the first pass, and all that are looked at in the next."""
    seen = look([0.9, 0.8, 0.7, 0.6, 0.95])
    for rule, count in (
        (CoherentUnmasker(2, 4, slack=9.0, most=9.0), 4),
        (AgreementUnmasker(0, 5), 2),
    ):
        state = rule.enter_block(rule.start_state(seen.canvas), 5)
        edit, state = rule.choose_edit(state, seen, rng())
        assert edit.write == ((14, 0),)
        left = look([0.9, 0.8, 0.7, 0.6], positions=(10, 11, 12, 13))
        edit, state = rule.choose_edit(state, left, rng())
        assert len(edit.write) == count


@pytest.mark.parametrize(
    "rule", [CoherentUnmasker(2, 4), AgreementUnmasker(0, 5)], ids=lambda rule: type(rule).__name__
)
def test_what_flickers_waits(rule):
    """Gaps of equal confidence: those that keep their token are written together, those that change it one a pass."""
    sure = [0.99, 0.98, 0.98, 0.98]
    first, rest = look(sure), look(sure[1:], positions=(11, 12, 13))
    edit, state = rule.choose_edit(
        rule.enter_block(rule.start_state(first.canvas), 4), first, rng()
    )
    assert edit.write == ((10, 0),)
    other = replace(rest, logw_RV=rest.logw_RV.roll(1, 1))
    stays, moves = (rule.choose_edit(state, seen, rng())[0].write for seen in (rest, other))
    assert len(stays) > 1 == len(moves)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_fixed_budget_is_what_every_pass_writes(count):
    """The gaps whose mean laws are clearest, and where they are too few those that are clearest now; by a loop of its own."""
    depth, width = 3, 4
    for seed in range(10):
        chain, canvas, history = (
            MarkovChainNetwork(seed, 5, sharp=2.0),
            (*PROMPT, *(None,) * 12),
            [],
        )
        rule = CoherentUnmasker(depth, width, count=count)
        state = rule.enter_block(rule.start_state(canvas), 12)
        while rows := [i for i, x in enumerate(canvas) if x is None]:
            seen = UnmaskerView(
                canvas,
                range(len(PROMPT), len(canvas)),
                tuple(rows),
                torch.stack([chain.position_law(canvas, r) for r in rows]),
                (GreedyRule(),),
            )
            law = dict(zip(rows, seen.logp_RV.exp()))

            def nats(p_V):
                return float(row_entropy(p_V.log()[None]))

            now = sorted(rows, key=lambda r: (nats(law[r]), r))
            known = [r for r in now[:width] if history and all(r in h for h in history)]
            mean = {r: torch.stack([*(h[r] for h in history), law[r]]).mean(0) for r in known}
            best = sorted(known, key=lambda r: (nats(mean[r]), now.index(r)))[:count]
            want = [*best, *(r for r in now if r not in best)][:count]
            edit, state = rule.choose_edit(state, seen, rng())
            assert [p for p, _ in edit.write] == sorted(want), (seed, canvas)
            assert len(edit.write) == min(count, len(rows))
            left = [r for r in now if r not in want][:width]
            history = [*history, {r: law[r] for r in left}][-(depth - 1) :]
            canvas = tuple(dict(edit.write).get(i, x) for i, x in enumerate(canvas))


def test_options_of_ccd():
    """The cap and the budget reach the rule, whichever of the two it is."""

    def unmasker(**options):
        return build("ccd", ToyDenoiser(MarkovChainNetwork(1)), None, options)[0].unmasker

    assert unmasker(most=0.2, count=3) == CoherentUnmasker(most=0.2, count=3)
    assert unmasker(steps=5, likely=True) == CoherentUnmasker(steps=5, rank=by_probability)
    assert unmasker(agree=True, count=3) == AgreementUnmasker(most=5, count=3)
    wide = look([0.9, 0.8, 0.7, 0.6], positions=(10, 11, 12, 13))
    for rule, count in ((AgreementUnmasker(0, 5), 2), (AgreementUnmasker(0, 5, 1), 1)):
        state = rule.choose_edit(
            rule.enter_block(rule.start_state(wide.canvas), 5),
            look([0.9, 0.8, 0.7, 0.6, 0.95]),
            rng(),
        )[1]
        assert len(rule.choose_edit(state, wide, rng())[0].write) == count


def nats(law_V):
    return -float((law_V * law_V.log()).sum())


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_coherence_against_a_reference(depth):
    """Gap by gap over laws that change from pass to pass: written is what was clear in this pass and the last `depth` - 1, on
    average; no pass before these counts."""
    g, rule, several = (
        torch.Generator().manual_seed(7),
        CoherentUnmasker(depth, 4, slack=0.2, most=0.8),
        0,
    )
    for _ in range(25):
        rows, state, passes = list(range(1, 10)), rule.enter_block((), 9), list[dict]()
        base_RV = torch.randn(10, 5, generator=g, dtype=torch.float64) * 2
        while rows:
            logw_RV = base_RV[rows] + torch.randn(len(rows), 5, generator=g, dtype=torch.float64)
            canvas = tuple(None if i in rows else 0 for i in range(10))
            seen = UnmaskerView(canvas, range(1, 10), tuple(rows), logw_RV, (GreedyRule(),))
            edit, state = rule.choose_edit(state, seen, rng())
            law = dict(zip(rows, logw_RV.softmax(-1)))
            clearest = sorted(rows, key=lambda r, law=law: nats(law[r]))
            last = passes[-(depth - 1) :] if depth > 1 else []
            mean = {
                r: nats(sum((one[r] for one in last), law[r]) / (len(last) + 1))
                for r in clearest[:4]
                if last and all(r in one for one in last)
            }
            bar = min(min(mean.values(), default=0.0) + 0.2, 0.8)
            want = {r for r, h in mean.items() if h <= bar} or {clearest[0]}
            assert {p for p, _ in edit.write} == want
            several += len(want) > 1
            passes.append({r: law[r] for r in [r for r in clearest if r not in want][:4]})
            rows = [r for r in rows if r not in want]
    assert (several > 10) == (depth > 1)


def test_a_mean_law_is_less_clear_than_its_parts():
    """Jensen: the entropy of a mean is at least the mean entropy."""
    g = torch.Generator().manual_seed(2)
    for _ in range(50):
        p = torch.randn(3, 6, generator=g, dtype=torch.float64).mul(2).softmax(-1)
        assert (
            float(row_entropy(p.mean(0).log()[None])) >= float(row_entropy(p.log()).mean()) - 1e-12
        )


def test_a_filter_sees_the_block_and_where_it_stands():
    """It gets the confidences at their slots and 1 where a token stands, and may say yes to what no threshold would."""
    asked = []

    class Says:
        size = 6

        def __call__(self, sure_B):
            asked.append(sure_B.tolist())
            return torch.tensor([0.0, 0.99, 0.0, 0.99, 0.0, 0.0])

    seen = look([0.9, 0.2, 0.3], positions=(10, 11, 14), block=range(10, 15))
    assert chosen(FilteredUnmasker(Says(), 0.96), seen) == {10, 11}
    assert asked == [pytest.approx([0.9, 0.2, 1.0, 1.0, 0.3, 1.0])]


def test_a_filter_that_asks_sees_what_the_model_says_of_tokens():
    """At every position of the block its greatest probability there, whether a token stands or not; nothing else changes."""
    asked = []

    class Says:
        size = 6

        def __call__(self, sure_B):
            asked.append(sure_B)
            return torch.zeros(6)

    chain, events = MarkovChainNetwork(5, 5, 2.0), []
    plain = DenoisingDecoder(
        ToyDenoiser(chain), FilteredUnmasker(Says(), 0.96), DualRefresh(), 6, (GreedyRule(),)
    )
    seen = replace(plain, written=BlockTokens())
    run_coroutines([answer_one(seen, Request(PROMPT, 12), on=events.append)])
    got, asked[:] = list(asked), []
    assert prompted(plain, 0, 12).token_ids == prompted(seen, 0, 12).token_ids
    canvas, block = (*PROMPT, *(None,) * 12), range(3, 9)
    for sure_B, edit in zip(
        got, [e.edit for e in events if isinstance(e, EditedEvent)], strict=True
    ):
        if not gap_positions(canvas, block.start, block.stop):
            block = range(9, 15)
        want = [float(chain.position_law(canvas, i)[:-1].softmax(-1).max()) for i in block]
        assert sure_B.tolist() == pytest.approx(want)
        canvas = canvas_with_edit(canvas, edit)


def test_an_end_that_may_be_unsure_cuts_sooner():
    """Learn2PD's `sure`: at 0, as released, any predicted end cuts; at 1 only one that all gaps behind it share."""
    fed = {}
    for sure in (0.0, 0.5, 1.0):
        fed[sure] = 0
        for seed in range(20):
            model = ToyDenoiser(MarkovChainNetwork(seed, 4, sharp=1.0, free=True), 3)
            learned = (filters.examples(model.vocab, 4, 4)[0],)
            decoder = build("learn2pd", model, None, {"sure": sure}, artefacts=learned)[0]
            fed[sure] += prompted(decoder, seed, 8).stats.fed
    assert fed[0.0] < fed[0.5] < fed[1.0]


def test_what_each_rule_feeds():
    """Blocks of 4 in a canvas of 3 + 8, one gap a pass from the left."""

    def fed(refresh, unmasker=None, own=0):
        events = []
        decoder = DenoisingDecoder(
            ToyDenoiser(MarkovChainNetwork(3), -1, own),
            unmasker or LeftToRightUnmasker(),
            refresh,
            4,
        )
        run_coroutines([answer_one(decoder, Request(PROMPT, 8), on=events.append)])
        return [e.fed for e in events if isinstance(e, UnmaskedEvent)]

    whole, s = (0, 11), 3
    assert fed(FrozenRefresh(delay=False)) == [whole, *[(s, 11)] * 3, *[(s + 4, 11)] * 4]
    assert fed(FrozenRefresh()) == [whole, *[(s, 11)] * 3, (s + 3, 11), *[(s + 4, 11)] * 3]
    assert (
        fed(FrozenRefresh(every=1))
        == fed(DelayedRefresh(1))
        == fed(WindowRefresh(2, 1))
        == [whole] * 8
    )
    assert fed(DelayedRefresh(8)) == [
        whole,
        whole,
        (s + 1, 11),
        (s + 2, 11),
        whole,
        whole,
        (s + 5, 11),
        (s + 6, 11),
    ]
    assert fed(WindowRefresh(1, 9)) == [
        whole,
        whole,
        (s + 1, s + 4),
        (s + 2, s + 5),
        whole,
        whole,
        (s + 5, s + 8),
        (s + 6, s + 8),
    ]
    assert fed(BlockwiseRefresh(4), own=4) == [
        (0, 4),
        (0, 8),
        *[(4, 8)] * 3,
        (4, 11),
        *[(8, 11)] * 2,
    ]
    assert fed(BlockwiseRefresh(8, inner=True), own=8)[:6] == [
        (0, 8),
        *[(4, 8)] * 0,
        (0, 8),
        *[(4, 8)] * 3,
        (0, 11),
    ]


@pytest.mark.parametrize("handed", [False, True])
@pytest.mark.parametrize("threshold", [2.0, 0.7])
@pytest.mark.parametrize("begin", [3, 8])
def test_fast_dllm_v2_against_a_reference(begin, threshold, handed):
    """The published loop, greedy: the first token of a block from what stands before it, then its parts from the left, in
    passes over the whole block while a part begins with a gap and in passes over the part from then on."""
    own, part, prompt = 8, 4, (0, 1, 0, 1, 0, 1, 0, 1)[:begin]
    for seed in range(6):
        chain, fed = MarkovChainNetwork(seed, 5, 2.0), []
        canvas, stored = [*prompt, *(None,) * 18], 0

        def sure(canvas, i, chain=chain):
            p_V = chain.position_law(tuple(canvas[: i // own * own + own]), i).softmax(-1)
            return float(p_V.max()), int(p_V.argmax())

        while None in canvas:
            first = canvas.index(None)
            low, high = first // own * own, min(first // own * own + own, len(canvas))
            if handed and first == low:
                fed.append((stored, high))
                canvas[first], stored = sure(canvas, first)[1], low
            for start in range(low, high, part):
                stop, held = min(start + part, high), False
                while None in canvas[start:stop]:
                    whole = not held or canvas[start] is None
                    fed.append((stored, high) if whole else (max(start, begin), stop))
                    held, stored = True, low
                    odds = {i: sure(canvas, i) for i in range(start, stop) if canvas[i] is None}
                    best = max(odds, key=lambda i: odds[i][0])
                    for i, (c, x) in odds.items():
                        if i == best or c >= threshold:
                            canvas[i] = x
        options = {"threshold": threshold, "block": part, "rerun": True, "handed": handed}
        kit = Kit(ToyDenoiser(chain, -1, own), shapers=(GreedyRule(),))
        decoder = registry.build("fast-dllm-v2", kit, options)[0]
        events = []
        out = run_coroutines([answer_one(decoder, Request(prompt, 18), on=events.append)])[0]
        assert out.token_ids == tuple(canvas[begin:])
        assert [e.fed for e in events if isinstance(e, UnmaskedEvent)] == fed
        assert out.stats.passes == len(fed)


@pytest.mark.parametrize("every", [1, 3, 8])
def test_a_kept_prompt_is_fed_once(every):
    """dKV-Cache-Prefill and -PD: what Delayed feeds without the prompt, but for the first pass, which feeds it."""
    plain, kept = (
        build(
            "dkv-cache",
            ToyDenoiser(MarkovChainNetwork(3)),
            None,
            {"every": every, "prompt": prompt, "block": 4},
        )[0]
        for prompt in (False, True)
    )
    assert (
        kept.exactness is Exactness.APPROXIMATE
        and replace(kept, prompt_kept=False).refresh == plain.refresh
    )
    spot, before, seen = kept.start_state(Request(PROMPT, 8), frozenset()), None, 0
    while spot.block:
        want = list(plain.fed_positions(spot, before))
        got = list(kept.fed_positions(spot, before))
        assert got == [p for p in want if before is None or p >= len(PROMPT)]
        seen += len(got) < len(want)
        before, edit = spot.canvas, TextEdit(write=((gap_positions(spot.canvas)[0], 1),))
        spot = kept.state_after(spot, edit, spot.state)
    assert seen >= 3
    whole, short = prompted(plain, 0, 8), prompted(kept, 0, 8)
    assert whole.token_ids == short.token_ids and short.stats.fed == whole.stats.fed - 3 * seen


def canvases(dice, size=14):
    """Two canvases of a run, one pass apart, and the block whose gaps are filled: a few tokens more stand in the second."""
    before = tuple(None if dice.random() < 0.6 else dice.randrange(5) for _ in range(size))
    left = gap_positions(before)
    written = set(dice.sample(left, dice.randint(0, max(0, len(left) - 1)))) if left else set()
    canvas = tuple(1 if i in written else x for i, x in enumerate(before))
    start = dice.randrange(size - 1)
    return before, canvas, range(start, dice.randint(start + 1, size))


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 7])
def test_what_is_fed_by_its_definition(step):
    """On canvases that are filled in any order, position by position as the rules' texts say it."""
    dice = Random(step)
    for _ in range(60):
        before, canvas, block = canvases(dice)
        every, width, all_ = dice.randint(1, 5), dice.randint(0, 3), list(range(len(canvas)))
        written = [i for i in all_ if before[i] is None and canvas[i] is not None]
        left = [i for i in all_ if canvas[i] is None]
        whole = step < 2 or step % every == 0

        now, begin = (canvas, before, block, step), (canvas, None, block, step)
        assert list(DelayedRefresh(every).fed_positions(*now)) == (
            all_ if whole else sorted({*left, *written})
        )
        turn = gap_positions(canvas, block.start, block.stop)
        near = [i for i in left if i >= block.start][: 1 + width] if turn else []
        assert list(WindowRefresh(width, every).fed_positions(*now)) == (
            all_ if whole else sorted({*near, *written})
        )
        late = [i for i in all_[: block.start] if before[i] is None]
        for rule in (
            FrozenRefresh(),
            FrozenRefresh(delay=False),
            FrozenRefresh(True, every),
            FrozenRefresh(False, every),
        ):
            again = rule.every and step % rule.every == 0
            first = min([block.start, *late]) if rule.delay else block.start
            assert list(rule.fed_positions(*now)) == (all_ if again else all_[first:])
        for rule in (
            DelayedRefresh(every),
            WindowRefresh(width, every),
            FrozenRefresh(),
            FrozenRefresh(False),
        ):
            assert list(rule.fed_positions(*begin)) == all_


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_window_lies_around_the_gaps_whose_turn_comes(count):
    """dKV-Cache-Greedy by its card: what was written last, what is written now, and of the gaps around each of these the
    nearest, left and right by turns."""
    dice, bound = Random(count), 0
    for _ in range(200):
        before, canvas, block = canvases(dice)
        width, rank = dice.randint(0, 4), tuple(dice.random() for _ in canvas)
        written = [i for i, x in enumerate(canvas) if x is not None and before[i] is None]
        now = sorted(gap_positions(canvas, block.start, block.stop), key=lambda i: rank[i])[:count]
        want = {*written, *now}
        for at in now:
            left = [i for i in range(at - 1, block.start - 1, -1) if canvas[i] is None]
            right = [i for i in range(at + 1, len(canvas)) if canvas[i] is None]
            turns, taken = [left, right], []
            while len(taken) < width and (left or right):
                side = turns.pop(0)
                turns.append(side)
                if side:
                    taken.append(side.pop(0))
            want.update(taken)
        got = WindowRefresh(width, 99, count, rank).fed_positions(canvas, before, block, 3)
        assert list(got) == sorted(want)
        assert len(got) <= len(written) + count * (1 + width)
        bound += len(got) == len(written) + count * (1 + width)
    assert bound


def test_an_order_that_is_drawn_is_known_before_it_is_needed():
    """Every pass fills the gap of its block whose turn it is; each order of a block is as likely as any other; and where all is
    fed every time, orders are all that differs from the one from the left."""

    def order(seed, every=9, **options):
        decoder = build(
            "dkv-cache-greedy",
            ToyDenoiser(MarkovChainNetwork(3, 5)),
            None,
            {"every": every, "block": 3, "width": 0, **options},
        )[0]
        events = []
        run_coroutines([answer_one(decoder, Request(PROMPT, 6, seed=seed), on=events.append)])
        writes = [[p for p, _ in e.edit.write] for e in events if isinstance(e, EditedEvent)]
        return tuple(tuple(w) for w in writes if w)

    assert order(0) == tuple((i,) for i in range(3, 9))
    seen = Counter(order(seed, shuffled=True)[:3] for seed in range(600))
    assert len(seen) == 6 and all(60 < n < 140 for n in seen.values())
    assert all({p for w in o for p in w} == {3, 4, 5} for o in seen)
    assert [len(w) for w in order(1, shuffled=True, count=2)] == [2, 1, 2, 1]
    assert order(1, shuffled=True)[:2] != ((3,), (4,))
    check_unmasker(InOrderUnmasker(2, tuple(Random(3).random() for _ in range(40))))


@pytest.mark.parametrize("steps", [0, 2, 4, 8])
def test_a_margin_is_of_probabilities(steps):
    """The gaps whose best two lie farthest apart, of any laws: flat ones and sharp ones, with tokens that are ruled out."""
    g = torch.Generator().manual_seed(steps)
    for sharp in (0.3, 1.0, 4.0):
        logw_RV = sharp * torch.randn(8, 6, generator=g, dtype=torch.float64)
        logw_RV[:, 5] = -torch.inf
        logw_RV[0, 2:] = -torch.inf
        seen = replace(look([0.5] * 8), logw_RV=logw_RV)
        p_RV = [sorted(row.tolist(), reverse=True) for row in logw_RV.softmax(-1)]
        ranked = sorted(range(8), key=lambda i: p_RV[i][1] - p_RV[i][0])
        first = {seen.rows[i] for i in ranked[: pass_quota(8, steps, 0)]}
        assert chosen(MarginUnmasker(steps), seen) == first


@pytest.mark.parametrize(
    "refresh",
    [FrozenRefresh(every=1), DelayedRefresh(1), WindowRefresh(3, 1), BlockwiseRefresh(4)],
    ids=str,
)
def test_rules_that_feed_enough_are_full(refresh):
    own = 4 if isinstance(refresh, BlockwiseRefresh) else 0
    for seed in range(6):
        decoders = [
            DenoisingDecoder(
                ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0), 4, own), ThresholdUnmasker(0.7), r, 6
            )
            for r in (refresh, FullRefresh())
        ]
        assert prompted(decoders[0], seed).token_ids == prompted(decoders[1], seed).token_ids


def test_an_end_that_is_predicted_cuts_the_canvas():
    """Nothing before the cut changes for it, where the laws do not hang on what is behind; fewer positions are fed."""
    cut = spared = 0
    for seed in range(20):
        chain = MarkovChainNetwork(seed, 4, sharp=2.0, free=True)
        plain, short, longer = (
            prompted(
                DenoisingDecoder(
                    ToyDenoiser(chain, 3),
                    ConfidenceUnmasker(),
                    FullRefresh(),
                    0,
                    (GreedyRule(),),
                    ending=e,
                ),
                seed,
                20,
            )
            for e in (FullLengthEnding(), PredictedEnding(0.0), PredictedEnding(0.0, spare=2))
        )
        assert (
            longer.token_ids == short.token_ids
            and short.stats.fed <= longer.stats.fed <= plain.stats.fed
        )
        spared += longer.stats.fed > short.stats.fed
        end = short.token_ids.index(3) if 3 in short.token_ids else len(short.token_ids)
        assert short.token_ids[:end] == plain.token_ids[:end] and short.stats.fed <= plain.stats.fed
        cut += short.stats.fed < plain.stats.fed
    assert cut > 5 and spared > 5
    seen = replace(look([0.3, 0.95, 0.4]), ends=frozenset({0}))
    assert (
        PredictedEnding(0.9).find_end(seen, TextEdit(write=((10, 1),))) == 11
        and PredictedEnding(0.99).find_end(seen, TextEdit()) is not None
    )
    unsure = replace(look([0.3, 0.95, 0.4]), ends=frozenset({0}))
    unsure = replace(unsure, logw_RV=torch.cat([unsure.logw_RV[:2], unsure.logw_RV[2:].roll(1, 1)]))
    assert (
        PredictedEnding(0.99).find_end(unsure, TextEdit()) is None
        and PredictedEnding().find_end(seen, TextEdit(write=((10, 0),))) == 10
    )


def test_the_first_of_several_ends_that_are_written_cuts_the_canvas():
    """In whatever order they are written; nothing behind it is."""
    seen, dice = replace(look([0.9] * 6), ends=frozenset({0, 3})), Random(4)
    for _ in range(40):
        write = tuple((p, dice.randrange(4)) for p in dice.sample(range(10, 16), 5))
        ends = [p for p, x in write if x in (0, 3)]
        if ends:
            assert PredictedEnding().find_end(seen, TextEdit(write=write)) == sorted(ends)[0]
    model = ToyDenoiser(MarkovChainNetwork(1, 2, 0.1, free=True), 1)
    cut = DenoisingDecoder(
        model, ThresholdUnmasker(0.0), FullRefresh(), 0, ending=PredictedEnding(1.0)
    )
    for seed in range(12):  # all is written in one pass
        text = prompted(cut, seed).token_ids
        events = []
        run_coroutines([answer_one(cut, Request(PROMPT, 14, seed=seed), on=events.append)])
        written = [e.edit.write for e in events if isinstance(e, EditedEvent) and e.edit.write]
        assert [p for p, _ in written[0]] == [3 + i for i in range(len(text))]


@pytest.mark.parametrize("own", [0, 4])
def test_a_guide_decides_how_much_is_written(own):
    """One that finds nothing likely: one a pass from the left; one that finds everything likely: a block a pass."""
    for seed in range(6):
        base = DenoisingDecoder(
            ToyDenoiser(MarkovChainNetwork(seed, 4, 2.0), -1, own),
            LeftToRightUnmasker(),
            FullRefresh(),
            5,
            (GreedyRule(),),
        )
        guide = toy_law(seed, 5, eos=4)
        one = prompted(base, seed)
        shy = prompted(GuidedDenoising(base, guide, chunk=1), seed)
        assert shy.token_ids == one.token_ids and shy.stats.passes == 14
        bold = prompted(GuidedDenoising(base, guide, top=0), seed)
        blocks = prompted(replace(base, unmasker=LeftToRightUnmasker(1)), seed)
        assert bold.token_ids == blocks.token_ids and bold.stats.passes == blocks.stats.passes
        some = prompted(GuidedDenoising(base, guide, top=2), seed)
        assert bold.stats.passes <= some.stats.passes <= 14


@pytest.mark.parametrize(
    "rule, allowed",
    [
        ({"top": 1}, lambda p_V, x: x == p_V.index(max(p_V))),
        ({"top": 0, "least": 0.1}, lambda p_V, x: p_V[x] >= 0.1),
        ({"top": 2}, lambda p_V, x: sum(p > p_V[x] for p in p_V) < 2),
        (
            {"top": 2, "relative": 0.5},
            lambda p_V, x: sum(p > p_V[x] for p in p_V) < 2 and p_V[x] >= 0.5 * max(p_V),
        ),
        ({"top": 0, "relative": 0.3}, lambda p_V, x: p_V[x] >= 0.3 * max(p_V)),
    ],
    ids=["deterministic", "threshold", "top-k", "top-k relative", "relative"],
)
def test_what_a_guide_accepts_is_as_published(rule, allowed):
    """Of drafts of all kinds the first token that the published test refuses ends what stands."""
    dice, lengths = Random(0), set()
    base = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(0, 5)), LeftToRightUnmasker(), FullRefresh(), 0
    )
    for seed in range(60):
        guide = toy_law(seed, 6, sharp=1.5)
        tokens = [dice.randrange(6) for _ in range(5)]

        async def scored(guide=guide, tokens=tokens):
            session = guide.open_session(PROMPT)
            return await session.score_draft(
                Draft.chain_draft(PROMPT[-1], tokens[:-1]), ScoreRequest()
            )

        scores = run_coroutines([scored()])[0]
        rows = [scores.logprob_row(j).exp().tolist() for j in range(5)]
        want = next((j for j, x in enumerate(tokens) if not allowed(rows[j], x)), 5)
        assert GuidedDenoising(base, guide, **rule).accepted_count(scores, tokens, rng()) == want
        lengths.add(want)
    assert len(lengths) > 1


def test_a_guide_accepts_by_chance_as_often_as_a_token_is_likely():
    guide = toy_law(3, 5, sharp=0.7)

    async def scored():
        return await guide.open_session(PROMPT).score_draft(
            Draft.chain_draft(PROMPT[-1], ()), ScoreRequest()
        )

    scores = run_coroutines([scored()])[0]
    base = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(0, 5)), LeftToRightUnmasker(), FullRefresh(), 0
    )
    how = GuidedDenoising(base, guide, top=0, chance=True)
    for x in range(5):
        p = float(scores.logprob_row(0)[x].exp())
        times = sum(how.accepted_count(scores, [x], Rng.of_choice(seed)) for seed in range(2000))
        assert abs(times / 2000 - p) < 4 * (p * (1 - p) / 2000) ** 0.5
    often = replace(how, top=1)  # and among the likeliest, as the other tests
    assert sum(often.accepted_count(scores, [x], Rng.of_choice(0)) for x in range(5)) <= 1


@pytest.mark.parametrize("rule", [{"relative": 0.5}, {"chance": True}, {"least": 0.2}], ids=str)
def test_a_guide_that_accepts_less_takes_more_passes(rule):
    fewer = more = 0
    for seed in range(8):
        base = DenoisingDecoder(
            ToyDenoiser(MarkovChainNetwork(seed, 4, 2.0)), LeftToRightUnmasker(), FullRefresh(), 0
        )
        guide = toy_law(seed, 5, eos=4)
        out = prompted(GuidedDenoising(base, guide, top=0, **rule), seed)
        fewer += prompted(GuidedDenoising(base, guide, top=0), seed).stats.passes
        more += out.stats.passes
        assert out == prompted(GuidedDenoising(base, guide, top=0, **rule), seed)
    assert fewer == 8 < more < 8 * 14


def test_a_guide_reads_the_text_that_stands():
    """Its passes are those of a session that reads the final answer: nothing that was refused stays in it."""
    seen = []
    guide = toy_law(2, 5, eos=4)
    plain_open = type(guide).open_session

    class Watched:
        vocab, layers = guide.vocab, 0

        def open_session(self, prompt):
            session = plain_open(guide, prompt)
            commit = session.commit_tokens
            session.commit_tokens = lambda tokens: (seen.extend(tokens), commit(tokens))[1]
            return session

    base = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(5, 4, 2.0)),
        LeftToRightUnmasker(),
        FullRefresh(),
        0,
        (GreedyRule(),),
    )
    out = prompted(GuidedDenoising(base, Watched(), top=2), 1)
    assert seen == [PROMPT[-1], *out.token_ids][: len(seen)] and len(seen) > 5


def test_guidance_without_scale_is_the_model_and_with_it_the_prompt_counts_more():
    model = ToyDenoiser(MarkovChainNetwork(4, 4, 2.0))
    canvas = (*PROMPT, None, None, None)

    def laws(denoiser):
        board = denoiser.open_canvas(6, 3)

        async def go():
            return await board.score_canvas(canvas, (3, 4, 5), range(6))

        return run_coroutines([go()])[0].log_softmax(-1).exp()

    class Split:
        """The law with the prompt, and without it an even one."""

        family, layers, block, vocab = "diffusion", 0, 0, model.vocab

        def open_canvas(self, length, prompt=0):
            board = model.open_canvas(length, prompt)

            class Board:
                async def score_canvas(self, canvas, rows, feed):
                    if canvas[0] is None:
                        return torch.tensor(
                            [[0.0] * 4 + [float("-inf")]] * len(rows), dtype=torch.float64
                        )
                    return await board.score_canvas(canvas, rows, feed)

                def close(self):
                    board.close()

            return Board()

    plain = laws(model)
    assert torch.allclose(laws(PromptGuidedDenoiser(Split(), 0.0)), plain)
    sharp = plain[:, :4] ** 3
    assert torch.allclose(
        laws(PromptGuidedDenoiser(Split(), 2.0))[:, :4], sharp / sharp.sum(-1, keepdim=True)
    )


def test_what_is_given_stays_and_is_seen():
    for seed in range(3):
        chain, given = MarkovChainNetwork(seed, 4, 2.0), (None, 2, None, None, 1)
        joint = {t: p for t, p in chain.joint_law(PROMPT, 5).items() if (t[1], t[4]) == (2, 1)}
        total = sum(joint.values())
        decoder = DenoisingDecoder(ToyDenoiser(chain), AtRandomUnmasker(), FullRefresh())
        got = law_of(lambda r, d=decoder, g=given: answer_one(d, Request(PROMPT, 5, given=g), r))
        assert text_law_distance(got, {t: p / total for t, p in joint.items()}) < 1e-9
    with pytest.raises(ValueError, match="given has 2 positions"):
        Request(PROMPT, 3, given=(None, 1))
