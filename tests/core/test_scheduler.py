"""The scheduler: merging, patience, failure, cancelling, accounts."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from polydec.core.effects import ForwardQuery, PauseEffect, gather_coroutines, race_coroutines
from polydec.core.scheduler import PREFIXES, CachedPrefix, Scheduler, run_coroutines


@dataclass(eq=False)
class Doubler:
    """Doubles its queries, and notes what each pass held."""

    cost: float = 1.0
    passes: list = field(default_factory=list)

    def forward(self, queries):
        self.passes.append(list(queries))
        if "bad" in queries:
            raise OSError("a pass failed")
        return [2 * q for q in queries] if "short" not in queries else []


async def ask(model, *queries):
    out = 0
    for q in queries:
        out = await ForwardQuery(model, q, 1)
    return out


def test_waiting_passes_are_merged_per_model():
    a, b = Doubler(), Doubler()
    assert run_coroutines([ask(a, 1, 2), ask(a, 3), ask(b, 4), ask(a, 5, 6)]) == [4, 6, 8, 12]
    assert a.passes == [[1, 3, 5], [2, 6]]
    assert b.passes == [[4]]


def test_a_task_notes_what_was_cached_of_the_first_text_of_a_length():
    a, b = Doubler(), Doubler()
    task = Scheduler().submit_coroutine(ask(a, 1))
    for model, length, cached in ((a, 9, 4), (a, 9, 9), (b, 9, 2), (a, 7, 0)):
        task.note_opened(CachedPrefix(model, length, cached))
    assert [task.cached_of(a, 9), task.cached_of(b, 9), task.cached_of(a, 7)] == [4, 2, 0]
    assert task.cached_of(b, 7) == 0 and len(task.prefixes) == 3
    for length in range(100, 100 + 2 * PREFIXES):
        task.note_opened(CachedPrefix(a, length, 1))
    assert len(task.prefixes) == PREFIXES and task.cached_of(a, 9) == 4
    task.close()


def test_cheap_models_run_first_so_that_the_dear_one_fills():
    cheap, dear = Doubler(0.1), Doubler(1.0)

    async def draft(steps):
        for i in range(steps):
            await ForwardQuery(cheap, i, 1)
        return await ForwardQuery(dear, steps, 1)

    assert run_coroutines([draft(1), draft(3), draft(2)]) == [2, 6, 4]
    assert dear.passes == [[1, 2, 3]] or sorted(dear.passes[0]) == [1, 2, 3]
    assert len(dear.passes) == 1


def test_patience_bounds_the_wait():
    cheap, dear, seen = Doubler(0.1), Doubler(1.0), []
    scheduler = Scheduler(patience=3)
    waiting = scheduler.submit_coroutine(ask(dear, 1))
    scheduler.submit_coroutine(ask(cheap, *range(20)))
    while scheduler.step():
        seen.append(len(dear.passes))
    assert waiting.result == 2
    assert seen.index(1) == 3


def test_gather_keeps_order_and_nothing_is_an_answer():
    m = Doubler()

    async def main():
        assert await gather_coroutines() == []
        return await gather_coroutines(ask(m, 1, 1, 1), ask(m, 2), ask(m, 3, 3))

    assert run_coroutines([main()]) == [[2, 4, 6]]
    assert m.passes == [[1, 2, 3], [1, 3], [1]]


def test_race_gives_the_first_and_closes_the_rest():
    m, closed = Doubler(), []

    async def slow():
        try:
            return await ask(m, 1, 1, 1, 1)
        finally:
            closed.append("slow")

    async def main():
        return await race_coroutines(slow(), ask(m, 5, 5), ask(m, 6, 6))

    assert run_coroutines([main()]) == [(1, 10)]  # the lowest index of the two that tie
    assert closed == ["slow"]
    assert m.passes == [[1, 5, 6], [1, 5, 6]]


def test_race_of_none_is_refused():
    async def main():
        await race_coroutines()

    with pytest.raises(ValueError, match="at least one"):
        run_coroutines([main()])


def test_failure_closes_siblings_and_raises_in_the_parent():
    m, closed = Doubler(), []

    async def sibling():
        try:
            await ask(m, *range(9))
        finally:
            closed.append(True)

    async def fails():
        await ask(m, 1)
        raise KeyError("mine")

    async def main():
        try:
            await gather_coroutines(sibling(), fails())
        except KeyError:
            return await ask(m, 7)

    assert run_coroutines([main()]) == [14]
    assert closed == [True]


def test_failed_pass_fails_its_requests_only():
    m, other = Doubler(), Doubler(2.0)
    scheduler = Scheduler()
    tasks = [
        scheduler.submit_coroutine(c)
        for c in (ask(m, "bad"), ask(m, 2), ask(other, 3), ask(m, 1, 1))
    ]
    while scheduler.step():
        pass
    assert [str(t.error) for t in tasks] == [
        "a pass failed",
        "a pass failed",
        "None",
        "a pass failed",
    ]
    assert tasks[2].result == 6

    async def survives():
        try:
            return await ask(m, "bad")
        except OSError:
            return await ask(m, 4)

    assert run_coroutines([survives()]) == [8]


def test_a_model_that_answers_too_little_fails_its_requests():
    with pytest.raises(ValueError):
        run_coroutines([ask(Doubler(), "short")])


def test_run_raises_the_first_error_after_closing_the_others():
    m, closed = Doubler(), []

    async def other():
        try:
            await ask(m, *range(99))
        finally:
            closed.append(True)

    async def fails():
        await ask(m, 1)
        raise KeyError("mine")

    with pytest.raises(KeyError):
        run_coroutines([other(), fails()])
    assert closed == [True]


@pytest.mark.parametrize("tick", range(6))
def test_submit_and_cancel_at_any_tick(tick):
    m, closed = Doubler(), []

    async def inner():
        try:
            await ask(m, 1, 1, 1)
        finally:
            closed.append("inner")

    async def outer():
        try:
            return await gather_coroutines(inner(), ask(m, 1, 1))
        finally:
            closed.append("outer")

    scheduler = Scheduler()
    task, neighbour = (
        scheduler.submit_coroutine(outer()),
        scheduler.submit_coroutine(ask(m, 9, 9, 9, 9, 9)),
    )
    late = None
    for _ in range(tick):
        scheduler.step()
    scheduler.cancel(task)
    scheduler.cancel(task)  # twice is once
    late = scheduler.submit_coroutine(ask(m, 4))
    while scheduler.step():
        pass
    assert neighbour.result == 18 and late.result == 8
    assert task.done and task.error is None
    assert closed == ["inner", "outer"] or tick == 0
    assert (task.result is not None) == (tick > 3)


def test_cancel_before_the_first_step_needs_no_pass():
    m, scheduler = Doubler(), Scheduler()
    scheduler.cancel(scheduler.submit_coroutine(ask(m, 1)))
    assert not scheduler.step()
    assert m.passes == []


@pytest.mark.parametrize("then", ["wait", "end", "fail"])
def test_a_task_may_cancel_itself(then):
    m, closed, scheduler = Doubler(), [], Scheduler()

    async def main():
        try:
            await ask(m, 1)
            scheduler.cancel(task)
            if then == "wait":
                await ask(m, 2)
            if then == "fail":
                raise KeyError
            return "an answer"
        finally:
            closed.append(True)

    task = scheduler.submit_coroutine(main())
    while scheduler.step():
        pass
    assert task.done and task.result is None and task.error is None
    assert closed == [True]
    assert m.passes == [[1]]


def test_a_child_may_cancel_the_whole():
    m, scheduler = Doubler(), Scheduler()

    async def child():
        await ask(m, 1)
        scheduler.cancel(task)
        await ask(m, 2)

    async def main():
        await gather_coroutines(child(), ask(m, 3, 3, 3))

    task = scheduler.submit_coroutine(main())
    while scheduler.step():
        pass
    assert task.done and task.result is None
    assert m.passes == [[1, 3]]


def test_accounts_of_a_request():
    m = Doubler()

    async def two():
        return await gather_coroutines(Forward_(m, 1, 3), Forward_(m, 2, 1))

    scheduler = Scheduler()
    tasks = [scheduler.submit_coroutine(two()), scheduler.submit_coroutine(Forward_(m, 5, 4))]
    while scheduler.step():
        pass
    a, b = (t.usage[m] for t in tasks)
    assert (a.passes, a.positions, b.passes, b.positions) == (1, 4, 1, 4)
    assert a.seconds == pytest.approx(b.seconds) and a.seconds > 0


async def Forward_(model, query, size):
    return await ForwardQuery(model, query, size)


class Meeting:
    """A model whose pass ends when another one's is under way."""

    cost = 1.0

    def __init__(self, barrier):
        self.barrier = barrier

    def forward(self, queries):
        self.barrier.wait(timeout=30)
        return [q + 1 for q in queries]


def test_every_pass_of_a_watched_task_is_kept():
    a, b = Doubler(), Doubler(cost=0.5)

    async def both():
        return await gather_coroutines(ask(a, 1, 2), ask(a, 3), ask(b, 4))

    s = Scheduler()
    watched, other = s.submit_coroutine(both()), s.submit_coroutine(ask(a, 7, 8, 9))
    watched.passes = []
    while s.step():
        pass
    assert other.passes is None and other.result == 18
    assert [(p.model, p.positions, p.of, p.queries) for p in watched.passes] == [
        (b, 1, 1, 1),
        (a, 2, 3, 3),
        (a, 1, 2, 2),
    ]
    assert all(p.seconds >= 0 for p in watched.passes) and sum(
        p.positions for p in watched.passes
    ) == sum(u.positions for u in watched.usage.values())
    starts = [p.start for p in watched.passes]
    assert starts == sorted(starts)


def test_with_a_pool_models_run_at_the_same_time():
    barrier = threading.Barrier(2)
    a, b = Meeting(barrier), Meeting(barrier)
    with ThreadPoolExecutor(2) as pool:
        scheduler = Scheduler(pool=pool)
        assert run_coroutines(
            [gather_coroutines(ask(a, 1, 2), ask(b, 5, 6)), ask(a, 7, 8)], scheduler
        ) == [[3, 7], 9]
        assert not scheduler.step()


def test_with_a_pool_failures_and_cancelled_tasks_end_as_without():
    with ThreadPoolExecutor(2) as pool:
        scheduler = Scheduler(pool=pool)
        good, bad = Doubler(), Doubler()
        tasks = [
            scheduler.submit_coroutine(ask(good, 1)),
            scheduler.submit_coroutine(ask(bad, "short")),
            scheduler.submit_coroutine(ask(good, 2)),
        ]
        scheduler.cancel(tasks[2])
        while scheduler.step():
            pass
        assert (
            tasks[0].result == 2
            and isinstance(tasks[1].error, ValueError)
            and tasks[2].result is None
        )
        with pytest.raises(OSError, match="a pass failed"):
            run_coroutines([ask(bad, "bad")], Scheduler(pool=pool))


class Once:
    """A model that counts its passes."""

    cost = 1.0

    def __init__(self):
        self.passes = 0

    def forward(self, queries):
        self.passes += 1
        return list(queries)


def test_an_interrupt_between_passes_ends_that_request_alone():
    async def interrupted():
        await ForwardQuery(model, 1, 1)
        raise KeyboardInterrupt

    async def fine():
        await ForwardQuery(model, 1, 1)
        return await ForwardQuery(model, 2, 1)

    model, scheduler = Once(), Scheduler()
    bad, good = scheduler.submit_coroutine(interrupted()), scheduler.submit_coroutine(fine())
    with pytest.raises(KeyboardInterrupt):
        while scheduler.step():
            pass
    while scheduler.step():
        pass
    assert good.result == 2 and isinstance(bad.error, KeyboardInterrupt)


def test_a_pause_stops_a_task_that_is_asked_to_and_no_other():
    async def pauses():
        for i in range(3):
            await ForwardQuery(model, i, 1)
            await PauseEffect()
        return "done"

    model, scheduler = Once(), Scheduler()
    free, held = scheduler.submit_coroutine(pauses()), scheduler.submit_coroutine(pauses())
    scheduler.hold_task(held)
    while scheduler.step():
        pass
    assert free.result == "done" and scheduler.has_stopped(held) and not scheduler.has_stopped(free)
    scheduler.resume_task(held)
    while scheduler.step():
        pass
    assert held.result == "done"


class Counter:
    """A model whose passes are lists of sizes; a query is how many positions it has, and its answer as well."""

    cost = 1.0

    def __init__(self):
        self.passes = []

    def forward(self, queries):
        self.passes.append([*queries])
        return queries


def prompt(model, size, behind=0):
    """A query that may be fed in parts."""

    def split(most):
        assert 1 <= most < size
        return ForwardQuery(
            model, most, most, rest=prompt(model, size - most, behind + most), behind=behind
        )

    return ForwardQuery(model, size, size, split if size > 1 else None, behind=behind)


async def writer(model, first, count, gaps):
    """A request: a prompt, then a token a pass; gaps: which passes wrote."""
    await prompt(model, first)
    for _ in range(count):
        await ForwardQuery(model, 1, 1)
        gaps.append(len(model.passes))


@pytest.mark.parametrize("seed", range(8))
def test_prompts_fill_up_what_the_others_leave(seed):
    rng, m = random.Random(seed), Counter()
    most = rng.choice((8, 16, 40))
    scheduler, written = Scheduler(positions=lambda _: most), [[] for _ in range(6)]
    sizes = [rng.choice((1, 3, most, 10 * most, 37 * most + 5)) for _ in written]
    tasks = [scheduler.submit_coroutine(writer(m, n, 60, w)) for n, w in zip(sizes, written)]
    while scheduler.step():
        pass
    assert all(t.done and t.error is None for t in tasks) and sum(map(sum, m.passes)) == sum(
        sizes
    ) + 60 * len(sizes)
    assert all(sum(p) <= most for p in m.passes)
    assert all(w == [*range(w[0], w[0] + 60)] for w in written), "a token waited for a prompt"
    busy = [
        p for p in m.passes if max(p) > 1
    ]  # where a prompt is under way no room is left over, but in its last pass
    assert sum(sum(p) < most for p in busy) <= len(sizes)
    assert [t.usage[m].positions for t in tasks] == [n + 60 for n in sizes]


def test_passes_are_as_large_as_those_who_wait_for_a_token_allow():
    m, scheduler = Counter(), Scheduler(positions=lambda writing: 8 if writing else 100)
    first = scheduler.submit_coroutine(writer(m, 90, 6, []))
    for _ in range(2):
        scheduler.step()  # its prompt at once, then its first token
    second = scheduler.submit_coroutine(writer(m, 60, 1, []))
    while scheduler.step():
        pass
    assert first.done and second.done and m.passes[0] == [90]
    assert all(sum(p) <= 8 for p in m.passes if len(p) > 1) and any(len(p) > 1 for p in m.passes)
    assert max(map(sum, m.passes[1:])) > 8, "the rest of a prompt that is alone"


@pytest.mark.parametrize("most, doubling", [(32, 50), (32, 10_000), (8, 3)])
def test_positions_behind_much_count_for_more(most, doubling):
    """A position behind c tokens counts 1 + c / doubling: no pass takes more than `most` of that; whoever is first gets on."""
    m, scheduler = Counter(), Scheduler(positions=lambda _: most, doubling=doubling)
    task = scheduler.submit_coroutine(writer(m, 300, 1, []))
    while scheduler.step():
        pass
    parts, behind = [p[0] for p in m.passes[:-1]], 0
    for n in parts:
        load = sum(1 + (behind + i + 0.5) / doubling for i in range(n))
        more = load + 1 + (behind + n + 0.5) / doubling
        assert n == 1 or load <= most + 1e-6
        assert behind + n == 300 or more > most - 1e-6, "there was room for one more"
        behind += n
    assert task.done and behind == 300 and parts[0] > parts[-2] - (doubling > 1000) * most


def test_prompts_get_on_beside_more_tokens_than_a_pass_takes():
    m, scheduler, written = Counter(), Scheduler(positions=lambda _: 16), [[] for _ in range(40)]
    tasks = [scheduler.submit_coroutine(writer(m, 1, 300, w)) for w in written]
    late = scheduler.submit_coroutine(writer(m, 100, 1, []))
    while not late.done:
        assert scheduler.step()
    assert (
        len(m.passes) <= 100
        and not any(t.done for t in tasks)
        and all(sum(p) <= 16 for p in m.passes)
    )
    scheduler.cancel(late)


def test_a_prompt_in_parts_survives_an_interrupt_and_a_cancel():
    class Broken(Counter):
        def forward(self, queries):
            if len(self.passes) == 2:
                self.passes.append([])
                raise KeyboardInterrupt
            return super().forward(queries)

    m, scheduler = Broken(), Scheduler(positions=lambda _: 10)
    one, two = (
        scheduler.submit_coroutine(writer(m, 35, 2, [])),
        scheduler.submit_coroutine(writer(m, 35, 2, [])),
    )
    for _ in range(2):
        scheduler.step()
    with pytest.raises(KeyboardInterrupt):
        scheduler.step()
    scheduler.cancel(two)
    while scheduler.step():
        pass
    assert one.done and one.error is None and one.usage[m].positions == 37 and two.result is None


@pytest.mark.parametrize("seed", range(8))
def test_prompts_end_in_the_order_in_which_they_came(seed):
    """One that was begun is fed to its end before the next one is: nobody who came first waits for who came later."""
    rng, m, ended = random.Random(seed), Counter(), dict[int, int]()
    most = rng.choice((5, 8, 13))
    sizes = [rng.randint(2, 6 * most) for _ in range(6)]

    async def fed(i):
        await prompt(m, sizes[i])
        ended[i] = len(m.passes)

    scheduler = Scheduler(positions=lambda _: most)
    for i in range(6):
        scheduler.submit_coroutine(fed(i))
    while scheduler.step():
        pass
    assert ended == {i: -(-sum(sizes[: i + 1]) // most) for i in range(6)}


@dataclass(eq=False)
class Slow:
    """Answers when it is told to; ended: whether it has."""

    cost: float = 1.0
    ended: bool = False

    def forward(self, queries):
        threading.Event().wait(0.2)
        self.ended = True
        return list(queries)


@pytest.mark.parametrize("below", [False, True])
def test_closing_a_task_waits_for_its_pass_that_is_under_way(below):
    """Also for one of a task below it, and for no pass of others."""
    slow, quick = Slow(), Doubler(0.1)

    async def parent():
        return await gather_coroutines(ask(slow, 1))

    with ThreadPoolExecutor(2) as pool:
        scheduler = Scheduler(pool=pool)
        task = scheduler.submit_coroutine(parent() if below else ask(slow, 1))
        other = scheduler.submit_coroutine(ask(quick, 2, 3, 4))
        assert scheduler.step()
        scheduler.settle_task(other)
        assert not slow.ended
        scheduler.cancel(task)
        assert slow.ended and task.done
        while scheduler.step():
            pass
    assert other.result == 8


def test_passes_hold_those_that_are_chosen():
    model = Doubler()
    scheduler = Scheduler(choose=lambda waiting: range(len(waiting))[:2])
    tasks = [scheduler.submit_coroutine(ask(model, i)) for i in range(5)]
    while scheduler.step():
        pass
    assert [t.result for t in tasks] == [0, 2, 4, 6, 8]
    assert model.passes == [[0, 1], [2, 3], [4]]
