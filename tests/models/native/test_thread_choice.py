"""How many threads a pass takes follows what passes take, and its bits stay."""

from __future__ import annotations

from collections import Counter

import pytest
from native_checkpoints import config, weights
from test_integers import chain, same

from polydec.models.native.library import native_step_availability
from polydec.models.native.network import CpuStep

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)
SETTINGS, IDS = config(num_hidden_layers=2), [i * 7 % 83 for i in range(20)]
WEIGHTS = weights(SETTINGS, seed=2)
QUIET = {4: (2.0, 0.0), 3: (2.5, 0.0), 2: (4.0, 0.1), 1: (6.5, 0.0)}
"""Of each number of threads what a pass takes, and how long its threads sleep, in milliseconds."""
BESIDE_ANOTHER = {4: (9.0, 6.0), 3: (2.5, 0.0), 2: (11.0, 6.0), 1: (6.5, 0.0)}


def built(threads):
    return CpuStep.build(SETTINGS, WEIGHTS, threads=threads, quantize="q8_0")


def run_passes(net, costs, count):
    """How often each number of threads was taken in so many passes."""
    taken = Counter()
    for _ in range(count):
        taken[net.pass_threads] += 1
        seconds, slept = (each / 1e3 for each in costs[net.pass_threads])
        net.learn_threads(1, seconds, slept)
    return taken


def test_a_quiet_machine_gives_all_threads():
    assert run_passes(built(2), QUIET, 300) == {2: 300}


@pytest.mark.parametrize("most, fewer", [(2, 1), (4, 3)])
def test_beside_another_program_fewer_threads_work_until_it_ends(most, fewer):
    net = built(most)
    run_passes(net, BESIDE_ANOTHER, 20)
    assert net.pass_threads == fewer
    taken = run_passes(net, BESIDE_ANOTHER, 2000)
    # More threads are tried now and then, and ever more seldom.
    assert 0 < taken[most] < 100
    assert taken[fewer] + taken[most] == 2000
    run_passes(net, QUIET, 300)
    assert net.pass_threads == most
    # Whoever comes back is noticed as soon as before, or after one trial that came too early.
    run_passes(net, BESIDE_ANOTHER, 30)
    assert net.pass_threads == fewer


def test_fewer_threads_that_are_slower_are_tried_seldom():
    held_up = {2: (5.0, 2.0), 1: (6.5, 0.0)}
    taken = run_passes(built(2), held_up, 2000)
    assert 0 < taken[1] < 90


def test_passes_of_several_rows_count_by_their_rows():
    """Eight rows take longer than one: that is no reason to take other threads."""
    net = built(2)
    for turn in range(300):
        rows = 8 if turn % 20 < 10 else 1
        net.learn_threads(rows, (4 + rows) * 1e-3, 0.0)
        assert net.pass_threads == 2


@pytest.mark.parametrize("most, fewer", [(2, 1), (4, 3)])
def test_the_bits_stay(most, fewer):
    truth = chain(built(1), IDS)[0]
    net = built(most)
    assert same(chain(net, IDS, 4)[0], truth)
    net = built(most)
    run_passes(net, BESIDE_ANOTHER, 20)
    assert net.pass_threads == fewer
    assert same(chain(net, IDS, 4)[0], truth)
    # A prompt takes all threads, and fewer work again behind it.
    assert same(chain(net, IDS)[0], truth)
    assert same(chain(net, IDS, 4)[0], truth)
