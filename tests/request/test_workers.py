"""Two workers: target and draft run at the same time, each on half of the threads. No text depends on it."""

import threading
import time

import pytest
import torch

import micro
from polydec import Ask, Engine, RequestError, generate, load
from polydec.core.effects import ForwardQuery, gather_coroutines, race_coroutines
from polydec.core.scheduler import Scheduler
from polydec.methods.economics.costs import PassCosts
from polydec.models.learned.kinds import coprocessor
from polydec.request import assembly


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(assembly.os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def names(tmp_path):
    return [str(micro.write(tmp_path / name, seed=i, hidden=64)) for i, name in enumerate("ab")]


def loaded_with(names, workers):
    lm = load(names[0], draft=names[1], workers=workers)
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


@pytest.mark.parametrize("method", ["pearl", "draft-model", "plain"])
def test_texts_are_those_of_one_worker(names, two_cores, method):
    one, two = (loaded_with(names, n) for n in (1, 2))
    assert one.pool is None and two.pool is not None
    asks = [
        Ask(
            f"The {who} fox and the river",
            method=method,
            raw=True,
            max_tokens=16,
            n=1 + i % 2,
            seed=i,
            sampling=one.sampling_with(temperature=0.7 * (i % 2)),
        )
        for i, who in enumerate(("grey", "tall", "quiet", "young"))
    ]
    want = [[c.token_ids for c in generate(one, a).choices] for a in asks]
    engine = Engine(two)
    assert [
        [c.token_ids for c in a.choices] for a in engine.run([engine.submit(a) for a in asks])
    ] == want


def test_a_coprocessor_is_what_a_second_worker_runs(names, two_cores, tmp_path):
    """Without a draft model, too; and texts are those of one worker."""
    where = str(tmp_path / "coprocessor")
    vocab = load(names[0], draft=None).checkpoint.lm.vocab
    (made,) = coprocessor.examples(vocab, 64, 64)
    coprocessor.save(where, made, {"target": "a"})
    one, two = (load(names[0], draft=None, trained=[where], workers=n) for n in (1, 2))
    asks = [
        Ask(
            f"The {who} fox and the river",
            raw=True,
            max_tokens=16,
            method="plain",
            steer="cache-augmentation",
            steer_options={"every": 6, "late": 3},
        )
        for who in ("grey", "tall")
    ]
    assert two.pool is not None
    assert micro.completed_ids(Engine(two), asks) == micro.completed_ids(Engine(one), asks)


def test_the_draft_runs_while_the_target_does(names, two_cores, monkeypatch):
    """Of pearl's passes some of the draft's begin before a pass of the target has ended, and on half of the threads each."""
    lm = loaded_with(names, 2)
    assert getattr(lm.network, "threads", 1) == 1
    spans, own = [], {}
    for point, name in ((lm.checkpoint, "target"), (lm.draft, "draft")):
        forward = point.lm.network.forward

        def timed(queries, forward=forward, name=name):
            start = time.perf_counter()
            if name == "target":
                time.sleep(0.01)
            answers = forward(queries)
            spans.append((name, start, time.perf_counter(), threading.current_thread().name))
            return answers

        monkeypatch.setattr(point.lm.network, "forward", timed)
    generate(lm, "The grey fox", method="pearl", raw=True, max_tokens=16, ignore_eos=True)
    for name, start, end, thread in spans:
        own.setdefault(name, []).append((start, end))
        assert thread.startswith("polydec-worker")
    beside = sum(
        any(start < b and a < end for a, b in own["target"]) for start, end in own["draft"]
    )
    assert beside > len(own["draft"]) // 2


class Slow:
    """A model whose pass takes a while, and writes at its end."""

    cost = 1.0

    def __init__(self, seconds):
        self.seconds, self.closed, self.wrote = seconds, False, []

    def forward(self, queries):
        time.sleep(self.seconds)
        self.wrote.append("behind the end" if self.closed else "in time")
        return list(queries)


@pytest.mark.parametrize("how", ["cancel", "race", "error"])
def test_nobody_gives_back_what_a_pass_still_writes(how):
    """Whoever is closed while a pass of theirs is under way is closed when it has ended."""
    from concurrent.futures import ThreadPoolExecutor

    slow, quick = Slow(0.05), Slow(0.001)

    async def holds():
        try:
            await ForwardQuery(slow, 1, 1)
        finally:
            slow.closed = True

    async def ends():
        await ForwardQuery(quick, 1, 1)
        if how == "error":
            raise RequestError("it ends")

    async def both():
        await (race_coroutines if how == "race" else gather_coroutines)(holds(), ends())

    with ThreadPoolExecutor(2) as pool:
        scheduler = Scheduler(pool=pool)
        task = scheduler.submit_coroutine(both())
        scheduler.step()
        if how == "cancel":
            scheduler.cancel(task)
        while scheduler.step():
            pass
    assert slow.wrote == ["in time"] and slow.closed


def test_one_core_is_refused_and_so_is_what_has_no_draft(names, monkeypatch):
    monkeypatch.setattr(assembly.os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(RequestError, match=r"workers is 2: each needs a core .* there is 1 here"):
        load(names[0], draft=names[1], workers=2)
    monkeypatch.setattr(assembly.os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(RequestError, match="each needs a core"):
        load(names[0], draft=names[1], workers=2, threads=1)
    with pytest.raises(RequestError, match="has no draft model, which the second one runs"):
        load(names[0], workers=2)
    with pytest.raises(RequestError, match="workers share the cores of a CPU"):
        load(names[0], draft=names[1], workers=2, device="cuda")
    with pytest.raises(RequestError, match="workers is 3: it must lie in 1 to 2"):
        load(names[0], draft=names[1], workers=3)
    assert torch.get_num_threads() >= 1
