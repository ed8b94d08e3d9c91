"""ReCAP: what a group plans, what its partial passes feed, and what it is without them."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import polydec
from picture_models import SIDE, trained_model
from polydec import Ask, Engine
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.check_unmasker import check_unmasker
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.laws.shapers.greedy import GreedyRule
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.events import UnmaskedEvent
from polydec.methods.diffusion.loop.types import UnmaskerView
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.unmaskers.annealed import AnnealedUnmasker
from polydec.methods.diffusion.unmaskers.grouped import GroupedUnmasker, GroupState

LENGTH = SIDE * SIDE
TILES = 4
"""What tokens draw: all that they may be."""


@pytest.fixture(scope="module", params=[1, 2], ids=["one layer", "two layers"])
def lm(request, tmp_path_factory):
    """(the model, its layers)"""
    folder = trained_model(
        tmp_path_factory.mktemp("pictures"), masked=True, layers=request.param, steps=20
    )[0]
    return polydec.load(str(folder), draft=None, threads=1), request.param


def test_contract(record_counts):
    record_counts(check_unmasker(GroupedUnmasker(AnnealedUnmasker(2), 0, 1)))


def counts_of(unmasker, begun):
    """Of each group the gaps that its passes fill."""
    out, now, step = [], begun, 0
    while now:
        counts = unmasker.pass_counts(GroupState(begun, step), now)
        out.append(counts)
        step += len(counts)
        now -= sum(counts)
    return out


@pytest.mark.parametrize(
    ("steps", "before", "partial"), [(32, 12, 1), (16, 0, 1), (9, 2, 3), (5, 9, 1)]
)
def test_groups_fill_what_the_schedule_fills(steps, before, partial):
    schedule = AnnealedUnmasker(steps)
    groups = counts_of(GroupedUnmasker(schedule, before, partial), 256)
    plain = counts_of(GroupedUnmasker(schedule, 0, 0), 256)
    assert [c for g in groups for c in g] == [c for g in plain for c in g]
    assert all(len(g) == 1 for g in groups[:before])
    assert all(len(g) == 1 + partial for g in groups[before:-1])


def test_passes_that_feed_all_are_those_of_the_paper():
    """32 passes, 12 before: 22 feed all; 16 passes, none before: 8 do."""
    assert len(counts_of(GroupedUnmasker(AnnealedUnmasker(32), 12, 1), 256)) == 22
    assert len(counts_of(GroupedUnmasker(AnnealedUnmasker(16), 0, 1), 256)) == 8


def decode(lm, method, seed=0, **options):
    """(events of its passes, the completion)"""
    seen = []
    engine = Engine(lm)
    ask = Ask("block", method=method, options=options, seed=seed)
    ticket = engine.submit(
        ask, on=lambda event: seen.append(event) if isinstance(event, UnmaskedEvent) else None
    )
    return seen, engine.run([ticket])[0]


@pytest.mark.parametrize("fields", [{"partial": 0}, {"before": 6, "partial": 3}])
def test_groups_of_one_are_maskgit(lm, fields):
    for seed in range(4):
        _, grouped = decode(lm[0], "recap", seed, steps=6, **{"before": 0, **fields})
        _, base = decode(lm[0], "maskgit", seed, steps=6)
        assert grouped.token_ids == base.token_ids
        assert grouped.metrics["positions_fed"] == base.metrics["positions_fed"]


def test_partial_passes_feed_their_group_alone(lm):
    seen, made = decode(lm[0], "recap", steps=8, before=2, partial=1)
    assert len(seen) == 8
    fed = 0
    groups = counts_of(GroupedUnmasker(AnnealedUnmasker(8), 2, 1), LENGTH)
    for counts in groups:
        fed += LENGTH + 1 + (len(counts) - 1) * sum(counts)
    assert made.metrics["positions_fed"] == fed
    written = [p for event in seen for p in event.position]
    assert sorted(written) == list(range(1, LENGTH + 1))


def test_partial_passes_feed_the_prompt_where_that_is_asked_for(lm):
    _, made = decode(lm[0], "recap", steps=8, before=2, partial=1, prompt_fed=True)
    fed = 0
    for counts in counts_of(GroupedUnmasker(AnnealedUnmasker(8), 2, 1), LENGTH):
        fed += LENGTH + 1 + (len(counts) - 1) * (sum(counts) + 1)
    assert made.metrics["positions_fed"] == fed


def test_a_group_draws_at_the_temperature_of_each_pass():
    logw = torch.tensor([[-1.0, -1.2, -3.0]] * 4, dtype=torch.float64)
    look = UnmaskerView((0, None, None, None, None), range(1, 5), (1, 2, 3, 4), logw)
    cold = GroupedUnmasker(AnnealedUnmasker(1, coolest=0.01), 0, 0)
    drawn = {
        tuple(
            token for _, token in cold.choose_edit(GroupState(4), look, Rng.of_choice(s))[0].write
        )
        for s in range(10)
    }
    assert drawn == {(0, 0, 0, 0)}


def follow(lm, partial):
    """(positions, laws in float32) of every pass of an answer whose plan is of this size."""
    unmasker = GroupedUnmasker(AnnealedUnmasker(6), 0, partial)
    decoder = DenoisingDecoder(lm.checkpoint.lm, unmasker, FullRefresh(), plan=unmasker)
    request = Request(lm.encode("block"), LENGTH)

    async def passes():
        sight = decoder.open_passes(request)
        whole = replace(
            decoder, plan=DenoisingDecoder(lm.checkpoint.lm, unmasker, FullRefresh()).plan
        )
        spot = decoder.start_state(request, frozenset())
        rng, out = Rng.of_choice(3), []
        while spot.block:
            look, feed = await sight.look_at_board(spot)
            fresh = whole.open_passes(request)
            right, _ = await fresh.look_at_board(spot)
            rows = [right.rows.index(r) for r in look.rows]
            out.append((feed, look.logp_RV, right.logp_RV[rows]))
            edit, state = unmasker.choose_edit(spot.state, look, rng)
            spot = decoder.apply_edit(spot, look, feed, edit, state).spot
            fresh.close()
        sight.close()
        return out

    return run_coroutines([passes()])[0]


def test_one_layer_has_nothing_stale(lm):
    """Keys and values of a first layer know their own token alone: a partial pass is a full one. A second layer's do not."""
    model, layers = lm
    worst = 0.0
    for feed, partial, whole in follow(model, 1):
        if len(feed) < LENGTH + 1:
            worst = max(worst, float((partial - whole)[:, :TILES].abs().max()))
    assert (worst < 1e-4) == (layers == 1)


def test_the_first_pass_of_a_group_is_fresh(lm):
    firsts = [pair for pair in follow(lm[0], 1) if len(pair[0]) == LENGTH + 1]
    assert len(firsts) == 3
    for _, seen, whole in firsts:
        torch.testing.assert_close(seen, whole, atol=1e-4, rtol=0)


def test_a_group_of_all_gaps_sees_all_that_it_wrote():
    """Nothing else is on the canvas but the prompt: partial passes are full ones, on the toy."""
    denoiser = ToyDenoiser(MarkovChainNetwork(2, 4))
    unmasker = GroupedUnmasker(AnnealedUnmasker(3), 0, 2)
    planned = DenoisingDecoder(denoiser, unmasker, FullRefresh(), plan=unmasker)
    request = Request((0, 1), 5, ignore_eos=True)
    text = run_coroutines([answer_one(planned, request)])[0].token_ids
    assert len(text) == 5


def test_the_order_of_a_group_is_kept():
    unmasker = GroupedUnmasker(AnnealedUnmasker(4, 0.0), 0, 3)
    seen = []
    denoiser = ToyDenoiser(MarkovChainNetwork(5, 4))
    decoder = DenoisingDecoder(denoiser, unmasker, FullRefresh(), plan=unmasker)

    async def passes():
        request = Request((0, 1), 8, ignore_eos=True)
        sight = decoder.open_passes(request)
        spot = decoder.start_state(request, frozenset())
        rng = Rng.of_choice(1)
        while spot.block:
            look, feed = await sight.look_at_board(spot)
            edit, state = unmasker.choose_edit(spot.state, look, rng)
            seen.append((state, [p for p, _ in edit.write]))
            spot = decoder.apply_edit(spot, look, feed, edit, state).spot
        sight.close()

    run_coroutines([passes()])
    plan = seen[0][0].planned
    assert len(plan) == 8
    done = 0
    for _, written in seen:
        assert written == sorted(plan[done : done + len(written)])
        done += len(written)
    assert done == 8 and all(a[0].planned == plan for a, _ in pairwise(seen))


def test_a_group_is_written_in_the_order_of_its_scores():
    """The surest row first where there is no noise, whatever its position."""
    logw = torch.full((4, 3), -9.0, dtype=torch.float64)
    logw[:, 1] = torch.tensor([-3.0, 2.0, -1.0, 5.0], dtype=torch.float64)
    look = UnmaskerView(
        (0, None, None, None, None), range(1, 5), (1, 2, 3, 4), logw, (GreedyRule(),)
    )
    unmasker = GroupedUnmasker(AnnealedUnmasker(4, 0.0, "linear"), 0, 3)
    _, state = unmasker.choose_edit(GroupState(4), look, Rng.of_choice(0))
    assert state.planned == (4, 2, 3, 1)
    assert unmasker.planned_positions(state) == [1, 2, 3, 4]


@pytest.mark.parametrize("fields", [{"before": -1}, {"partial": -1}, {"partial": 65}])
def test_values_out_of_range_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        GroupedUnmasker(**fields)
