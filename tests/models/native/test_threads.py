"""The pool of threads: more threads than cores, several networks at once. It ends, and the bits are those of one thread."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

import forked
from polydec.models.native.library import native_step_availability

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)
LIMIT = 240  # seconds; takes few of one free core

RUN = textwrap.dedent("""
    import threading
    from native_checkpoints import config, weights
    from test_integers import chain, same
    from polydec.models.native.library import COMPUTES
    from polydec.models.native.network import CpuStep

    c, ids = config(num_hidden_layers=3), [i * 7 % 83 for i in range(50)]
    w, wrong = weights(c, seed=2), []

    def built(threads, compute):
        return CpuStep.build(c, w, threads=threads, compute=compute, quantize="q8_0")

    def work(net, truth):
        for step in (1, 6, 50):
            if not same(chain(net, ids, step)[0], truth):
                wrong.append((net.kernel, net.threads, step))

    for compute in COMPUTES:
        truth = chain(built(1, compute), ids)[0]
        if {together}:                            # every network from a Python thread of its own, the last from two
            nets = [built(n, compute) for n in {threads}]
            users = [threading.Thread(target=work, args=[net, truth]) for net in (*nets, nets[-1])]
            for u in users:
                u.start()
            for u in users:
                u.join()
        else:
            for n in {threads}:
                work(built(n, compute), truth)
    assert not wrong, wrong
    print("done")
""")


@pytest.mark.parametrize(
    "threads, together",
    [((1, 2, 3, 5, 8, 16), False), ((2, 3, 16), True), ((100,), False)],
    ids=["1 to 16", "at once", "100"],
)
def test_more_threads_than_cores(threads, together):
    """In a process of its own: a deadlock must not stop the whole suite."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    code = RUN.format(threads=list(threads), together=together)
    got = forked.run("-c", code, env=env, timeout=LIMIT)
    assert got.stdout == "done\n", got.stderr[-2000:]
