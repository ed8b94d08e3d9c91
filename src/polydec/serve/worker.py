"""One model at work: a thread that owns `Engine.step`, a thread that checks requests, and the event loop that waits for both.

The event loop never waits for a pass. Requests are checked (tokenizer, chat template, drafters) in the planner's thread; the
engine's thread runs the passes and hands what they wrote to the loop, once a tick.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from polydec.api import Ask, Completion, Engine, LoadedModel, Piece, Ticket
from polydec.base.errors import PolydecError
from polydec.core.effects import Coro
from polydec.core.scheduler import RequestPass, ScheduledTask
from polydec.core.trace import ignore_event
from polydec.request.fair_queue import FairQueue
from polydec.request.stages import EncodedRequest
from polydec.serve.admission import AdmissionControl, RequestLoad, TokenPace
from polydec.serve.clients import ClientIdentity
from polydec.serve.errors import RefusalError
from polydec.serve.limits import apply_request_limits
from polydec.serve.metrics import ServerMetrics
from polydec.serve.reply import AnswerDelta
from polydec.serve.request_log import ResponseCounts
from polydec.serve.settings import RequestLimits
from polydec.serve.steps import StepObserver
from polydec.serve.traced import ServerTrace, ServerTraceObserver

log = logging.getLogger("polydec.serve")

LATE = "late"
LEFT = "left"
STOPPED = "stopped"
WAITED = "waited"
"""Why a request was cut: it took too long, its client left, the server stops, its turn did not come."""

EVERY = 0.25
"""Seconds between two looks at how full the caches are."""
ALONE = 4
"""How much larger a pass may be while no answer is being written: nobody waits for a token then, and large passes do more a
second."""


ANYBODY = ClientIdentity()
"""Who asks where nobody says."""


@dataclass(frozen=True)
class RequestEnd:
    """A prompt of a response has ended.

    Attributes:
        at: Its number among the prompts of the response.
        completion: Its answer; None where there is none.
        error: What went wrong. None: nothing did, or it was cancelled.
    """

    at: int
    completion: Completion | None
    error: Exception | None = None


@dataclass(eq=False)
class PromptJob:
    """One prompt of a response. `cut` is set in the loop's thread, everything else after it in the
    engine's.

    Attributes:
        at: Number of the prompt in the response.
        first: Number of its first answer in the response.
        ask: The request.
        steps: Observer of its steps, where they are asked for.
        told: Called with news, in the loop's thread.
        arrived: When it came, by `time.perf_counter`.
        deadline: When it must have ended, by the same clock.
        account: Whose share of the server it takes.
        cut: Why it was cut short; "" where it was not.
        ticket: Its ticket, once it was checked.
        written: How many tokens were handed on, by choice.
        finished: Choices that have ended.
        last: When something was handed on.
        passes: Passes since then, where they are asked for.
        watched: Its observer, where the server writes a trace.
    """

    at: int
    first: int  # the number of its first answer in the response
    ask: Ask
    steps: StepObserver | None  # where they are asked for
    told: Callable[[AnswerDelta | RequestEnd], None]  # called in the loop's thread
    arrived: float
    deadline: float
    account: str = ""  # whose share of the server it takes
    cut: str = ""
    ticket: Ticket | None = None
    written: dict[int, int] = field(default_factory=dict[int, int])  # tokens told, by choice
    finished: set[int] = field(default_factory=set[int])
    last: float | None = None  # when something was told
    passes: list[RequestPass] = field(
        default_factory=list[RequestPass]
    )  # since then, where they are asked for
    watched: ServerTraceObserver | None = None  # where the server writes a trace


@dataclass(eq=False)
class ReadJob:
    """A coroutine that reads with the model.

    Attributes:
        work: The coroutine.
        answer: Who waits for what it gives.
        task: Its task; None until the engine has it.
    """

    work: Coro
    answer: asyncio.Future[Any]
    task: ScheduledTask | None = None

    def settle_pass(self) -> None:
        """In the loop's thread."""
        assert self.task is not None
        if self.answer.done():
            return
        error = self.task.error
        if error is None:
            self.answer.set_result(self.task.result)
            return
        if not isinstance(error, PolydecError):
            log.error("reading failed", exc_info=error)
            error = RefusalError(
                "the request failed inside the server", status=500, code="internal"
            )
        self.answer.set_exception(error)


class ResponseAnswers:
    """What becomes of the prompts of one response, in the order in which it happens.

    Args:
        worker: The model's worker.
        asks: The requests, one for each prompt.
        steps: Whether what each round did is asked for.
        account: Whose share of the server they take.
    """

    def __init__(
        self, worker: ModelWorker, asks: Sequence[Ask], steps: bool, account: str = ""
    ) -> None:
        self._worker = worker
        self._news = asyncio.Queue[AnswerDelta | RequestEnd]()
        self.ends: list[RequestEnd | None] = [None] * len(asks)
        now = time.perf_counter()
        first = 0
        self.jobs = list[PromptJob]()
        self._first: float | None = None
        for at, ask in enumerate(asks):
            self.jobs.append(
                PromptJob(
                    at,
                    first,
                    ask,
                    StepObserver() if steps else None,
                    self._news.put_nowait,  # and not `self.tell`: jobs do not know whose they are
                    now,
                    now + worker.limits.seconds,
                    account,
                )
            )
            first += ask.answer_count

    def tell_news(self, news: AnswerDelta | RequestEnd) -> None:
        """Add news.

        Args:
            news: What was written, or that a prompt has ended.
        """
        self._news.put_nowait(news)

    async def next_news(self) -> AsyncIterator[AnswerDelta]:
        """Wait for news until all prompts have ended.

        Yields:
            What was written.

        Raises:
            RefusalError: A prompt did not end well; the others are cancelled then.
        """
        while None in self.ends:
            news = await self._news.get()
            if isinstance(news, AnswerDelta):
                # The first one of the whole response, whichever answer it belongs to.
                if self._first is None:
                    self._first = time.perf_counter()
                yield news
                continue
            self.ends[news.at] = news
            if news.completion is None:
                self.cancel_prompts(LEFT)
                raise _failure(self.jobs[news.at], news.error, self._worker)

    @property
    def completions(self) -> list[Completion]:
        """Of all prompts, once they have ended."""
        return [
            end.completion for end in self.ends if end is not None and end.completion is not None
        ]

    def response_counts(self) -> ResponseCounts:
        """Count what the response took and gave, as far as it came."""
        prompt = 0
        output = 0
        written = 0
        cached: int | None = None
        reasons = list[str]()
        texts = list[str]()
        method: str | None = None
        for job, end in zip(self.jobs, self.ends, strict=True):
            ticket = job.ticket
            if ticket is not None:
                method = ticket.plan.card.name
                prompt += len(ticket.plan.request.prompt) + ticket.plan.source
            if end is not None and end.completion is not None:
                answered = end.completion.usage["completion_tokens"]
                output += answered
                written += max(answered, end.completion.metrics.get("tokens_written", 0))
                cached = (cached or 0) + end.completion.cached_tokens
                reasons += [choice.finish_reason for choice in end.completion.choices]
                texts += [choice.text for choice in end.completion.choices]
            else:
                # A copy: the engine's thread may still write.
                told = sum(tuple(job.written.values()))
                output += told
                # A search tells nothing before its end: what it fed says what it has written.
                written += told or _positions_written(ticket)
                reasons += [job.cut or "error"] * job.ask.answer_count
        return ResponseCounts(
            method, prompt, output, cached, tuple(reasons), self._first, tuple(texts), written
        )

    @property
    def limits(self) -> RequestLimits:
        return self._worker.limits

    def cancel_prompts(self, why: str) -> None:
        """Cancel what has not ended.

        Args:
            why: Why, one of the words above.
        """
        self._worker.cancel_prompts(self.jobs, why)


def _positions_written(ticket: Ticket | None) -> int:
    """Positions that the model was fed behind the prompt of a request that has not ended."""
    if ticket is None or ticket.task is None:
        return 0
    use = ticket.task.usage.get(ticket.engine.model.network)
    if use is None:
        return 0
    return max(0, use.positions - len(ticket.plan.request.prompt))


def _failure(job: PromptJob, error: Exception | None, worker: ModelWorker) -> RefusalError:
    limits = worker.limits
    if job.cut == LATE:
        return RefusalError(
            f"the request took longer than {limits.seconds:g} seconds", status=504, code="timeout"
        )
    if job.cut == WAITED:
        return RefusalError(
            f"the request waited longer than {limits.wait:g} seconds for its turn",
            status=503,
            code="queue_timeout",
            retry=worker.admission.expected_turn(worker.current_loads()),
        )
    if job.cut == STOPPED:
        return RefusalError("the server stops", status=503, code="stopping", retry=5)
    if isinstance(error, PolydecError):  # such as sampling rules that leave no token
        return RefusalError(error)
    return RefusalError("the request failed inside the server", status=500, code="internal")


class ModelWorker:
    """One model at work. `start_requests` and `cancel_prompts` are called in the event loop's thread.

    Args:
        name: Name under which the model is served.
        model: The model.
        limits: Limits of its requests.
        metrics: Counters of the server.
        trace: Where to write what happens to requests. None: nowhere.
    """

    def __init__(
        self,
        name: str,
        model: LoadedModel,
        limits: RequestLimits,
        metrics: ServerMetrics,
        trace: ServerTrace | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self._trace = trace
        costs, alone = model.costs, ALONE * model.costs.pass_budget(1)
        # A pass is as large as it may be without delaying anybody's next token by much; alone it
        # may be larger.
        self.engine = Engine(
            model,
            max_running=limits.running,
            max_cache_bytes=limits.cache_bytes or None,
            max_positions=limits.positions
            or (lambda writing: costs.pass_budget(writing) if writing else alone),
            doubling=inf if limits.positions else costs.doubling,
        )
        self.pace = TokenPace()
        self.admission = AdmissionControl(limits, self.pace)
        self.live: set[PromptJob] = set()
        self.reading = 0  # coroutines that read, under way
        self._loop = asyncio.get_running_loop()
        self._planner = ThreadPoolExecutor(1, f"plan-{name}")
        self._unplanned = FairQueue[tuple[list[PromptJob], "Future[None]"]]()
        self._orders = SimpleQueue[Callable[[], None] | None]()
        self._jobs: list[PromptJob] = []  # the engine thread's
        self._going: list[ReadJob] = []  # as well
        self._preempted, self._looked = 0, 0.0  # when the caches were looked at last
        self._thread = Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._thread.start()

    async def start_requests(
        self, asks: Sequence[Ask], *, steps: bool = False, client: ClientIdentity = ANYBODY
    ) -> ResponseAnswers:
        """Check requests and let them run.

        Args:
            asks: The requests of one response; max_tokens None is as much as there is room for.
            steps: Whether what each round did is asked for. Default False.
            client: Who asks.

        Returns:
            Their answers, as they come.

        Raises:
            RefusalError: There is no room for them in the queue.
            RequestError: One of them cannot be honoured.
        """
        count = sum(ask.answer_count for ask in asks)
        self.limits.admit_answers(count)
        self.admission.admit_answers(client.account, count, self.current_loads)
        # Caches of one credential are never read by another one.
        salted = [replace(ask, cache_salt=client.cache_salt(ask.cache_salt)) for ask in asks]
        answers = ResponseAnswers(self, salted, steps, client.account)
        self.admission.begin_answers(client.account, count)
        self.live.update(answers.jobs)
        planned = asyncio.wrap_future(self._to_plan(client.account, answers.jobs))
        planned.add_done_callback(lambda _: self._forget_unplanned(answers))
        try:
            # Shielded: a client that leaves cancels the wait, and not the check, which ends by
            # itself.
            await asyncio.shield(planned)
        except asyncio.CancelledError:
            answers.cancel_prompts(LEFT)
            raise
        finally:
            # what it raised knows this frame: two that know one another stay until somebody looks for garbage, and so would
            # the request, which may be megabytes
            del planned
        return answers

    @property
    def answers(self) -> int:
        """Under way: waiting, running, or being checked."""
        return self.admission.under_way.total()

    def current_loads(self) -> list[RequestLoad]:
        """What is under way, for whoever wants to know how long that will take."""
        used = self.pace.used
        out = list[RequestLoad]()
        for job in self.live:
            # What it asked for, then what its plan allows, else the server's own limit.
            allowed = job.ask.max_tokens
            if job.ticket is not None:
                allowed = job.ticket.plan.request.max_tokens
            if allowed is None:
                allowed = self.limits.output
            written = tuple(job.written.values())
            each = sum(written) / job.ask.answer_count
            left = max(1.0, used * allowed - each)
            out.append(RequestLoad(job.account, job.ask.answer_count, left, bool(written)))
        return out

    def _to_plan(self, account: str, jobs: list[PromptJob]) -> Future[None]:
        """Have jobs checked, after those of their account and of others that have fewer answers
        under way.
        """
        planned = Future[None]()
        self._unplanned.add_item(account, (jobs, planned))
        self._planner.submit(self._plan_next)
        return planned

    def _plan_next(self) -> None:
        """In the planner's thread."""
        # Each call plans one entry, not always the one that was just put: accounts take turns.
        entry = self._unplanned.pop_first(Counter(self.admission.under_way))
        if entry is None or not entry[1].set_running_or_notify_cancel():
            return
        jobs, planned = entry
        del entry
        try:
            self._plan(jobs)
        except BaseException as error:
            planned.set_exception(error)
        else:
            planned.set_result(None)
        # as in `start_requests`: an error knows this frame
        del jobs, planned

    def _plan(self, jobs: list[PromptJob]) -> None:
        """In the planner's thread. The jobs go to the engine together, or none of them does."""
        try:
            going = [job for job in jobs if not job.cut]
            encoded = apply_request_limits(self.model, [job.ask for job in going], self.limits)
            for job, request in zip(going, encoded, strict=True):
                self._submit(job, request)
        except BaseException:
            for job in jobs:
                if job.ticket is not None:
                    self.engine.cancel(job.ticket)
                    job.ticket = None
            raise
        # One prompt failed: those that the engine has already are taken back.
        for job in jobs:
            if job.ticket is not None:
                # The list of jobs belongs to the engine's thread: it is changed by an order only.
                self._orders.put(lambda job=job: self._jobs.append(job))

    def _submit(self, job: PromptJob, request: EncodedRequest) -> None:
        if self._trace is not None:
            job.watched = self._trace.watch_request(self.model, job.steps)
        observed = job.watched or job.steps
        job.ticket = self.engine.submit_encoded(
            request,
            on=observed or ignore_event,
            passes=None if observed is None else job.passes,
            client=job.account,
        )
        if job.watched is not None:
            job.watched.note_begin(job.ticket)

    def _forget_unplanned(self, answers: ResponseAnswers) -> None:
        """Those that were refused, or cancelled before they came to the engine."""
        for job in answers.jobs:
            if job.ticket is None:
                self._gone(job)
                answers.tell_news(RequestEnd(job.at, None))

    def _gone(self, job: PromptJob) -> None:
        if job in self.live:
            self.live.remove(job)
            self.admission.end_answers(job.account, job.ask.answer_count)

    async def run_reading(self, work: Coro, client: ClientIdentity = ANYBODY) -> Any:
        """Run a coroutine that reads with the model, in passes shared with the answers under way.

        Args:
            work: The coroutine.
            client: Who asks.

        Returns:
            What the coroutine returns.

        Raises:
            RefusalError: There is no room for it in the queue, or it takes too long.
        """
        try:
            self.admission.admit_answers(client.account, 1, self.current_loads)
        except RefusalError:
            # A coroutine that is never awaited must be closed by hand.
            work.close()
            raise
        self.admission.begin_answers(client.account, 1)
        self.reading += 1
        answer: asyncio.Future[Any] = self._loop.create_future()
        going = ReadJob(work, answer)
        self._orders.put(lambda: self._begin(going))
        try:
            return await asyncio.wait_for(answer, self.limits.seconds)
        except TimeoutError:
            raise RefusalError(
                f"the request took longer than {self.limits.seconds:g} seconds",
                status=504,
                code="timeout",
            ) from None
        finally:
            self.admission.end_answers(client.account, 1)
            self.reading -= 1
            # Whether it ended or not: an engine that still reads for nobody stops here.
            self._orders.put(lambda: self._leave(going))

    def cancel_prompts(self, jobs: Sequence[PromptJob], why: str) -> None:
        """Cancel prompts; those that have ended stay so.

        Args:
            jobs: The prompts.
            why: Why, one of the words above.
        """
        for job in jobs:
            if job in self.live and not job.cut:
                job.cut = why
                self.metrics.cut.labels(self.name, why).inc()
                self._orders.put(lambda job=job: self._end_ticket(job))

    def close(self) -> None:
        """End the threads; what is under way is dropped."""
        self._planner.shutdown(wait=False, cancel_futures=True)
        while (entry := self._unplanned.pop_first(Counter())) is not None:
            entry[1].cancel()
        self._orders.put(None)

    async def wait_closed(self, seconds: float = 10.0) -> None:
        """Wait, after `close`, until the engine's thread has ended its pass.

        Args:
            seconds: The longest wait. Default 10.
        """
        await self._loop.run_in_executor(None, self._thread.join, seconds)

    # ---- the engine's thread ----

    def _run(self) -> None:
        while self._obey():
            try:
                self.engine.step()
            except Exception as error:  # no request's own: those are kept with their tickets
                log.exception("a tick failed")
                self._fail(error)
            self._tell()
            self._hand_over()

    def _begin(self, going: ReadJob) -> None:
        going.task = self.engine.run_reading(going.work)
        self._going.append(going)

    def _leave(self, going: ReadJob) -> None:
        """Nobody waits for it any more."""
        if going in self._going and going.task is not None:
            going.task.close()
            self._going.remove(going)

    def _hand_over(self) -> None:
        """What has been read."""
        for going in [g for g in self._going if g.task is not None and g.task.done]:
            self._going.remove(going)
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(going.settle_pass)

    def _obey(self) -> bool:
        """Take the orders there are; wait for one where nothing is under way. False: end."""
        try:
            while True:
                # With work under way it only looks; without, it sleeps until something comes.
                order = self._orders.get(block=not self._jobs and not self._going)
                if order is None:
                    return False
                order()
        except Empty:
            return True

    def _end_ticket(self, job: PromptJob) -> None:
        if job.ticket is not None:  # else it is being checked: `_tell` ends it when it comes
            self.engine.cancel(job.ticket)

    def _fail(self, error: Exception) -> None:
        for job in self._jobs:
            assert job.ticket is not None
            self.engine.cancel(job.ticket)
            self._send([(job, RequestEnd(job.at, None, error))])
        self._jobs = []

    def _tell(self) -> None:
        now = time.perf_counter()
        out = list[tuple[PromptJob, AnswerDelta | RequestEnd]]()
        waiting = 0
        wrote = 0
        for job in self._jobs:
            ticket = job.ticket
            assert ticket is not None
            # Time limits are kept here, once a tick, whatever the event loop is doing.
            if not ticket.done and not job.cut and (why := self._overdue(job, ticket, now)):
                job.cut = why
                self.metrics.cut.labels(self.name, why).inc()
                self.engine.cancel(ticket)
            if job.cut and not ticket.done:  # it was cut before its ticket was there
                self.engine.cancel(ticket)
            news = self._news(job, ticket)
            if news:
                wrote += sum(len(n.pieces) for n in news)
                # The first writing counts from arrival, every later one from the writing before.
                (self.metrics.first if job.last is None else self.metrics.between).labels(
                    self.name
                ).observe(now - (job.arrived if job.last is None else job.last))
                job.last = now
            out += [(job, n) for n in news]
            if ticket.done:
                out.append((job, self._end(job, ticket, now)))
            # A ticket without a task waits for its turn in the engine.
            waiting += ticket.task is None and not ticket.done
        self.pace.note_tokens(wrote)
        self._jobs = [job for job in self._jobs if job.ticket is not None and not job.ticket.done]
        self.metrics.waiting.labels(self.name).set(waiting)
        self.metrics.running.labels(self.name).set(len(self._jobs) - waiting)
        self._look(now)
        if out:
            self._send(out)

    def _overdue(self, job: PromptJob, ticket: Ticket, now: float) -> str:
        """Why a request may not go on; empty: it may."""
        if now > job.deadline:
            return LATE
        if ticket.task is None and now > job.arrived + self.limits.wait:
            return WAITED
        return ""

    def _look(self, now: float) -> None:
        """Tell how full the caches are, from time to time and when nothing is under way."""
        if self._jobs and now < self._looked + EVERY:
            return
        self._looked = now
        cached = self.engine.cached
        self.metrics.cached.labels(self.name).set(cached)
        self.metrics.usage.labels(self.name).set(
            cached / self.limits.cache_bytes if self.limits.cache_bytes else 0.0
        )
        self.metrics.preempted.labels(self.name).inc(self.engine.preempted - self._preempted)
        self._preempted = self.engine.preempted

    def _send(self, out: list[tuple[PromptJob, AnswerDelta | RequestEnd]]) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._deliver, out)

    def _deliver(self, out: list[tuple[PromptJob, AnswerDelta | RequestEnd]]) -> None:
        """In the loop's thread."""
        for job, news in out:
            if isinstance(news, RequestEnd):
                self._gone(job)
            job.told(news)

    def _news(self, job: PromptJob, ticket: Ticket) -> list[AnswerDelta]:
        by_choice: dict[int, list[Piece]] = {}
        for piece in ticket.watch.final_pieces():
            by_choice.setdefault(piece.choice, []).append(piece)
        out = list[AnswerDelta]()
        for choice, pieces in by_choice.items():
            text = ticket.transcript.texts[choice]
            start = job.written.get(choice, 0)
            stop = job.written[choice] = start + len(pieces)
            # The reason goes with the last token, and not before all tokens are handed on.
            if stop == len(text.tokens):
                reason = text.finish_reason
            else:
                reason = None
            if start == 0:
                prompt = ticket.transcript.prompt
            else:
                prompt = ()
            thinking = ticket.plan.thinking
            news = AnswerDelta(
                job.first + choice,
                tuple(pieces),
                tuple(text.notes[start:stop]),
                reason,
                prompt,
                thinking=None if thinking is None else thinking.writes_marks,
            )
            out.append(
                news if job.steps is None else replace(news, steps=job.steps.take_steps(choice))
            )
        if out and job.passes:  # those of all answers, with the first that has news
            if job.steps is not None:
                out[0] = replace(out[0], passes=tuple(job.passes))
            self._note(job)
        return [n if job.steps is None else replace(n, opened=ticket.watch.opened) for n in out]

    def _note(self, job: PromptJob) -> None:
        """Its passes so far, in the trace where there is one."""
        if job.watched is not None:
            job.watched.note_passes(job.passes)
        job.passes.clear()

    def _end(self, job: PromptJob, ticket: Ticket, now: float) -> RequestEnd:
        watch = ticket.watch
        self._note(job)
        self.metrics.whole.labels(self.name).observe(now - job.arrived)
        if watch.opened:
            self.metrics.queue.labels(self.name).observe(watch.opened - job.arrived)
        if watch.first is not None:
            self.metrics.decode.labels(self.name).observe(watch.last - watch.first)
        # A cut answer says nothing of how long answers are.
        if not job.cut:
            for written in job.written.values():
                self.pace.note_ended_answer(written, ticket.plan.request.max_tokens)
        try:
            self.metrics.count_ended_request(self.name, ticket)
            return RequestEnd(job.at, None if job.cut else ticket.completion())
        except Exception as error:
            if not isinstance(error, PolydecError):
                log.exception("a request failed")
            return RequestEnd(job.at, None, error)
