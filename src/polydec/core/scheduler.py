"""A deterministic scheduler: run every live coroutine until it waits, merge the waiting passes per model, resume."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf, sqrt
from operator import attrgetter
from typing import Any

from polydec.base.errors import RequestError
from polydec.core.effects import Coro, ForwardQuery, JoinEffect, PauseEffect
from polydec.core.protocols import BatchedModel


@dataclass
class ModelUsage:
    """What one request took of one model.

    Attributes:
        passes: Passes that held a query of the request.
        positions: Positions fed for it.
        seconds: Its share of the passes' time, by positions.
        last: The last of these passes, by the scheduler's count.
    """

    passes: int = 0
    positions: int = 0
    seconds: float = 0.0
    last: int = field(default=0, compare=False)


@dataclass(frozen=True)
class RequestPass:
    """One pass that a request took part in.

    Attributes:
        model: The model that ran.
        start: When the pass began, by `time.perf_counter`.
        seconds: How long it took.
        positions: Positions fed for this request.
        of: Positions fed for all requests.
        queries: How many queries were answered together.
        salted_of: Positions of the requests that have this request's cache_salt. A client of a
            server may know nothing of the others.
        salted_queries: Queries of those requests.
    """

    model: BatchedModel
    start: float
    seconds: float
    positions: int
    of: int
    queries: int
    salted_of: int
    salted_queries: int


@dataclass
class CachedPrefix:
    """A text that a task opened with a model.

    Attributes:
        model: The model.
        length: Tokens of the text.
        cached: How many of them were in the cache already, and were not fed again.
    """

    model: BatchedModel
    length: int
    cached: int


PREFIXES = 64
"""Most texts of which a task notes that."""


class ScheduledTask:
    """A coroutine under way.

    `usage` (of submitted tasks) counts per model what the task and its children fed. `passes`,
    where it is a list, gets a record of every pass. `prefixes` holds what was cached of the texts
    that the task opened, the first time of each.

    Args:
        coro: The coroutine.
        parent: The task that waits for this one; None: it was submitted.
        slot: Index of this task among the parent's children.
        cache_salt: What is computed for the task is shared with tasks of the same salt only. A
            child has its parent's.
    """

    __slots__ = (
        "__weakref__",
        "cache_salt",
        "coro",
        "done",
        "error",
        "join",
        "kids",
        "left",
        "parent",
        "passes",
        "paused",
        "prefixes",
        "result",
        "running",
        "slot",
        "top",
        "usage",
    )

    def __init__(
        self, coro: Coro, parent: ScheduledTask | None = None, slot: int = 0, cache_salt: str = ""
    ) -> None:
        if parent is None:
            self.cache_salt = cache_salt
        else:
            self.cache_salt = parent.cache_salt
        self.coro = coro
        self.parent = parent
        self.slot = slot
        self.top: ScheduledTask | None = (
            None if parent is None else parent.root
        )  # of a task below others: the submitted one
        self.join: JoinEffect | None = None
        self.kids: list[ScheduledTask] = []
        self.left = 0
        self.done = self.running = False
        self.paused: list[ScheduledTask] | None = (
            None  # of a task that is asked to stop: who below it has done so
        )
        self.result: Any = None
        self.error: BaseException | None = None
        # A child shares the records of the submitted task, so that a request is counted as one.
        self.usage: dict[BatchedModel, ModelUsage] = {} if parent is None else parent.usage
        self.passes: list[RequestPass] | None = None if parent is None else parent.passes
        self.prefixes: list[CachedPrefix] = [] if parent is None else parent.prefixes

    def note_opened(self, prefix: CachedPrefix) -> None:
        """Note what was cached of a text, if it is the first of its model and length."""
        # The first text of a length counts: later ones find what the request itself has cached.
        same = ((p.model, p.length) == (prefix.model, prefix.length) for p in self.prefixes)
        if len(self.prefixes) < PREFIXES and not any(same):
            self.prefixes.append(prefix)

    def cached_of(self, model: BatchedModel, length: int) -> int:
        """Look up how many tokens were cached of the first text of this length.

        Args:
            model: The model that the text was opened with.
            length: Tokens of the text.

        Returns:
            Cached tokens; 0 where no such text was opened.
        """
        known = (p.cached for p in self.prefixes if (p.model, p.length) == (model, length))
        return next(known, 0)

    def close(self) -> None:
        """Cancel this task and everything below it. What is waiting for it is dropped at the next
        step.
        """
        if not self.done:
            self.done = True
            # Nobody waits for the children's results any more.
            for kid in self.kids:
                kid.close()
            if (
                not self.busy
            ):  # one that ends itself (from an observer) is closed when it next waits
                self.coro.close()

    @property
    def root(self) -> ScheduledTask:
        """The submitted task that this one is, or is below of."""
        return self.top or self

    @property
    def busy(self) -> bool:
        """Whether this task or one below it is running just now."""
        return self.running or any(kid.busy for kid in self.kids)


_current: ContextVar[ScheduledTask | None] = ContextVar("current", default=None)


def current_task() -> ScheduledTask | None:
    """The submitted task whose coroutine, or one below it, is running just now: what is opened
    meanwhile belongs to it.
    """
    return _current.get()


def _below(task: ScheduledTask, above: ScheduledTask) -> bool:
    """Whether a task is this one, or somewhere below it."""
    at: ScheduledTask | None = task
    while at is not None and at is not above:
        at = at.parent
    return at is above


_cost = attrgetter("cost")
Group = list[tuple[ScheduledTask, ForwardQuery]]
Answers = tuple[Sequence[Any] | Exception, float, float]
"""What a pass gave, or why it failed; when it began; and its seconds."""


def _forward(model: BatchedModel, group: Group) -> Answers:
    start = time.perf_counter()
    try:
        # One merged pass for all queries of this model, whatever requests they belong to.
        answers = model.forward([f.query for _, f in group])
        if len(answers) != len(group):
            raise RequestError(f"the model gave {len(answers)} answers to {len(group)} queries")
    except Exception as error:
        return error, start, 0.0
    return answers, start, time.perf_counter() - start


def _loads(group: Group, doubling: float) -> list[float]:
    """What each of these queries takes of a pass, in positions behind nothing: behind `doubling`
    tokens a position counts twice (it reads all of them, which takes time), behind twice as many
    three times.
    """
    # Its positions see behind + size / 2 tokens on average; a position behind nothing counts 1.
    return [f.size * (1.0 + (f.behind + f.size / 2) / doubling) for _, f in group]


def _part(f: ForwardQuery, most: float, doubling: float) -> int:
    """How many positions of a query load a pass with `most`: the n of which n (1 + (behind + n /
    2) / doubling) is that.
    """
    if doubling == inf:
        return int(most)
    # The positive root of n^2 / 2 + (doubling + behind) n - doubling * most = 0.
    first = doubling + f.behind
    return int(sqrt(first * first + 2 * doubling * most) - first)


def _fill(prompts: Group, most: float, doubling: float) -> tuple[Group, Group]:
    """As much of these as there is room for, first come first served; and what is left that was
    not begun.
    """
    taken: Group = []
    for at, ((task, f), load) in enumerate(zip(prompts, _loads(prompts, doubling), strict=True)):
        if load > most:
            # Part of the query: the pass takes its beginning, and the rest waits in front of the
            # others.
            part = max(_part(f, most, doubling), int(not taken))  # whoever is first gets on
            if part and f.split is not None:
                taken.append((task, f.split(part)))
                at += 1
            # What did not fit waits; a prompt that was begun goes on with its rest.
            return taken, prompts[at:]
        taken.append((task, f))
        most -= load
    return taken, []


class Scheduler:
    """Run coroutines in steps, and merge the passes that wait for one model.

    `submit` and `cancel` may be called at any time, also from inside a step (by an observer, say).

    Each step runs one merged pass of the cheapest model that is waited for, so that drafts of
    different depth gather into one pass of the dearer target. A model that was passed over
    `patience` times runs all the same. A pass that is interrupted (Ctrl-C) stays due and runs
    again.

    Prompts fill the room in a pass that the other queries leave, in parts where a prompt does not
    fit. An eighth of a pass is theirs whatever else waits (Sarathi-Serve, Agrawal et al. 2024).

    With `pool`, every model that is waited for runs at once, each on a thread, and a step ends when
    one of them has (give each model its share of the cores). Texts are the same either way.

    Args:
        patience: How often a model may be passed over. Default 64.
        pool: An executor of two threads or more. None: passes run one after another.
        positions: How many positions one pass takes at most, given how many queries wait that are
            no prompts. What is over waits for the next pass, first come first served; a query that
            is larger than that runs all the same. None: no limit.
        doubling: Behind so many tokens a position counts twice. Default: positions count the same.
        choose: Which of the queries that wait for a model may share its next pass, as indices, at
            least one. None: all.
    """

    def __init__(
        self,
        patience: int = 64,
        pool: Executor | None = None,
        positions: Callable[[int], int] | None = None,
        doubling: float = inf,
        choose: Callable[[Sequence[ForwardQuery]], Sequence[int]] | None = None,
    ) -> None:
        self._choose = choose
        self._pool = pool
        self._running = dict[Future[Answers], tuple[BatchedModel, Group]]()
        self._ready: deque[tuple[ScheduledTask, Any, BaseException | None]] = deque()
        self._waiting: dict[BatchedModel, list[tuple[ScheduledTask, ForwardQuery]]] = {}
        self._skipped: dict[BatchedModel, int] = {}
        self._patience = patience
        self._passes = 0
        self._positions = positions
        self._doubling = doubling

    def submit_coroutine(self, coro: Coro, cache_salt: str = "") -> ScheduledTask:
        """Add a coroutine; it first runs in the next step.

        Args:
            coro: The coroutine.
            cache_salt: What is computed for it is shared with tasks of the same salt only. Default
                "".

        Returns:
            The task, which will hold result or error.
        """
        task = ScheduledTask(coro, cache_salt=cache_salt)
        self._ready.append((task, None, None))
        return task

    def cancel(self, task: ScheduledTask) -> None:
        """Close a submitted task: it ends without result or error."""
        # A pass under way still writes to caches of the task.
        self.settle_task(task)
        task.close()

    def settle_task(self, task: ScheduledTask | None = None) -> None:
        """Wait until no pass is under way in which this task, or one below it, takes part (None:
        none at all): whoever closes it gives caches back, which such a pass still writes. Without a
        pool nothing is ever under way.
        """
        if self._running:
            wait(
                future
                for future, (_, group) in self._running.items()
                if task is None or any(_below(t, task) for t, _ in group)
            )

    def hold_task(self, task: ScheduledTask) -> None:
        """Ask a submitted task to stop at its next pause, until `resume`."""
        # An empty list: it is asked to stop, and nothing of it has stopped yet.
        if task.paused is None:
            task.paused = []

    def has_stopped(self, task: ScheduledTask) -> bool:
        """Whether a task that was asked to has stopped, with everything below it."""
        if task.paused is None or task.done:
            return False
        # It has stopped when nothing of it waits for a pass, runs in one, or is ready to go on.
        waits = any(
            t.root is task for group in self._waiting.values() for t, _ in group if not t.done
        )
        runs = any(t.root is task for _, group in self._running.values() for t, _ in group)
        return not waits and not runs and not any(item[0].root is task for item in self._ready)

    def resume_task(self, task: ScheduledTask) -> None:
        """Let a task that was asked to stop go on."""
        if task.paused is not None:
            # Whatever below it had paused goes on.
            self._ready.extend((t, None, None) for t in task.paused)
            task.paused = None

    def step(self) -> bool:
        """Advance every coroutine to its next pass and run the passes that are due; False when
        nothing is left.
        """
        # Every coroutine runs on until it waits for a pass.
        while self._ready:
            self._resume(*self._ready.popleft())
        # Queries of cancelled tasks are dropped before a pass is put together.
        if [t for group in self._waiting.values() for t, _ in group if t.done]:
            self._waiting = {
                m: live
                for m, group in self._waiting.items()
                if (live := [i for i in group if not i[0].done])
            }
        # With threads a step starts what it can, and ends with the first pass that does.
        if self._pool is not None:
            return self._overlap(self._pool)
        if not self._waiting:
            return False
        # Cheap models run first, so that more queries gather for the dearer ones.
        cheapest = min(self._waiting, key=_cost)  # the first in order of waiting on a tie
        for model in list(self._waiting):
            skipped = self._skipped.pop(model, 0)
            if model is cheapest or skipped >= self._patience:
                group = self._due(model)
                try:
                    result = _forward(model, group)
                except BaseException:  # an interrupt: nothing was lost if the pass is still due
                    self._put_back(model, group)
                    raise
                self._take(model, group, result)
            else:
                self._skipped[model] = skipped + 1
        return True

    def _due(self, model: BatchedModel) -> Group:
        """What the next pass of a model takes of those that wait for it; the others wait on."""
        group = self._waiting.pop(model)
        # Queries that the caller's choice leaves out wait on, in front.
        if self._choose is not None:
            chosen = set(self._choose([f for _, f in group]))
            self._put_back(model, [item for i, item in enumerate(group) if i not in chosen])
            group = [item for i, item in enumerate(group) if i in chosen]
        if self._positions is None:
            return group
        # Steps of texts come first; prompts fill what room they leave.
        others = [item for item in group if item[1].split is None]
        most = self._positions(len(others))
        doubling = self._doubling
        if sum(_loads(group, doubling)) <= most:
            return group
        prompts = [item for item in group if item[1].split is not None]
        # An eighth of the pass belongs to prompts, so that new requests start while others decode.
        kept = max(1, most // 8) if prompts else 0
        count = 0
        size = 0.0
        for load in _loads(others, doubling):
            # The first query runs whatever its size: otherwise it would wait for ever.
            if count and size + load > most - kept:
                break
            count += 1
            size = size + load
        filled, left = _fill(prompts, max(kept, most - size), doubling)
        self._put_back(model, [*left, *others[count:]])
        return [*others[:count], *filled]

    def _put_back(self, model: BatchedModel, group: Group) -> None:
        """These wait for the model, in front of those that do already."""
        if group:
            self._waiting[model] = [*group, *self._waiting.get(model, ())]

    def _overlap(self, pool: Executor) -> bool:
        # A model has one pass under way at a time.
        busy = [model for model, _ in self._running.values()]
        for model in [m for m in self._waiting if m not in busy]:
            group = self._due(model)
            self._running[pool.submit(_forward, model, group)] = model, group
        # Wait for one pass at least; others may end in the same moment.
        for future in (
            wait(self._running, return_when=FIRST_COMPLETED).done if self._running else ()
        ):
            self._take(*self._running.pop(future), future.result())
        return bool(self._ready or self._running or self._waiting)

    def _take(self, model: BatchedModel, group: Group, result: Answers) -> None:
        answers, start, seconds = result
        if isinstance(answers, Exception):  # every request of this pass fails; the others go on
            self._ready.extend((t, None, answers) for t, _ in group)
            return
        self._passes += 1
        size = sum([f.size for _, f in group])
        # The time of a pass is shared out by positions.
        each = seconds / size
        later: Group = []
        watched: dict[int, tuple[list[RequestPass], int, str]] = {}
        # Each query gets its answer, and each request its share of the account.
        for (task, f), answer in zip(group, answers):
            use = task.usage.get(model)
            if use is None:
                use = task.usage[model] = ModelUsage()
            if use.last != self._passes:  # siblings of one request share one pass
                use.passes = use.passes + 1
                use.last = self._passes
            use.positions += f.size
            use.seconds += each * f.size
            # Several tasks of one request share one record of the pass: their positions are added
            # up.
            if task.passes is not None:
                before = watched.get(id(task.passes))
                if before is None:
                    size_before = 0
                else:
                    size_before = before[1]
                watched[id(task.passes)] = task.passes, f.size + size_before, task.cache_salt
            # A query is complete when nothing of it is left to feed.
            if f.rest is None:
                self._ready.append((task, answer, None))
            else:  # the rest of a prompt goes on where it was: in front
                later.append((task, f.rest))
        for passes, mine, salt in watched.values():
            # Numbers that a client may see are limited to the requests of its own salt.
            sizes = [f.size for task, f in group if task.cache_salt == salt]
            passes.append(
                RequestPass(model, start, seconds, mine, size, len(group), sum(sizes), len(sizes))
            )
        self._put_back(model, later)

    def _resume(self, task: ScheduledTask, value: Any, error: BaseException | None) -> None:
        if task.done:
            return
        task.running = True
        # What is opened while the coroutine runs belongs to the submitted task.
        token = _current.set(task.root)
        try:
            if error is None:
                effect = task.coro.send(value)
            else:
                effect = task.coro.throw(error)
        except StopIteration as stop:
            self._finish(task, stop.value, None)
        except Exception as failure:
            self._finish(task, None, failure)
        except BaseException as failure:  # an interrupt between passes: this request cannot go on
            self._finish(task, None, failure)
            raise
        else:
            task.running = False
            if task.done:
                pass  # it was cancelled while it ran
            elif isinstance(effect, ForwardQuery):
                self._waiting.setdefault(effect.model, []).append((task, effect))
            elif isinstance(effect, PauseEffect):
                paused = task.root.paused
                if paused is None:
                    # Nobody asked the request to stop: it goes on in this step.
                    self._ready.append((task, None, None))
                else:
                    paused.append(task)
            else:
                # The task waits for its children, which run in this step, in order.
                join: JoinEffect = effect
                task.join, task.kids = (
                    join,
                    [ScheduledTask(c, task, i) for i, c in enumerate(join.coros)],
                )
                task.left = len(task.kids)
                self._ready.extend((k, None, None) for k in task.kids)
        finally:
            _current.reset(token)
        above: ScheduledTask | None = task
        while above is not None and above.done:  # whoever was cancelled while this task ran
            above.coro.close()
            above = above.parent

    def _finish(self, task: ScheduledTask, value: Any, error: BaseException | None) -> None:
        task.running = False
        # A cancelled task has been closed already, and nobody waits for it.
        if task.done:
            return
        task.done = True
        task.result = value
        task.error = error
        parent = task.parent
        # Nobody waits: whoever submitted it reads result or error from the task.
        if parent is None or parent.done or parent.join is None:
            return
        parent.left -= 1
        answer: Any
        # A failure, or the first result of a race, ends the wait; the other children are closed
        # below.
        if error is not None or parent.join.first:
            answer = (task.slot, value)
        elif not parent.left:
            answer = [k.result for k in parent.kids]
        else:
            return
        parent.join = None
        # A pass of a child may still write to caches that closing it gives back.
        self.settle_task(parent)
        for kid in parent.kids:
            kid.close()
        self._ready.append((parent, answer, error))


def run_coroutines(coros: Sequence[Coro], scheduler: Scheduler | None = None) -> list[Any]:
    """Drive coroutines to their ends. The first error is raised after the others have been closed.

    Args:
        coros: The coroutines, in the order of their results.
        scheduler: Runs them, together with whatever else it holds. None: a new one.

    Returns:
        The results, in order.
    """
    scheduler = scheduler or Scheduler()
    tasks = [scheduler.submit_coroutine(c) for c in coros]
    try:
        while scheduler.step():
            if any(t.error is not None for t in tasks):
                break
    finally:
        # After an interrupt, too: sessions give their caches back.
        for t in tasks:
            t.close()
    for t in tasks:
        if t.error is not None:
            raise t.error
    return [t.result for t in tasks]
