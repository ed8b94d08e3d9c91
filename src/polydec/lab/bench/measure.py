"""Methods × prompts, interleaved, on one loaded model."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from polydec.api import Completion, Engine, LoadedModel, Prompt, Ticket
from polydec.base.answer_check import AnswerCheck
from polydec.base.errors import RequestError
from polydec.core.trace import EditedEvent, TraceEvent
from polydec.lab.bench import energy
from polydec.lab.bench.intervals import wilson_interval
from polydec.laws.shapers.sampling import Sampling
from polydec.methods.registry import registry
from polydec.methods.speculative.loop.stats import DraftStats


@dataclass(frozen=True)
class MethodSetting:
    """A method and its options as they are written on a command line.

    Attributes:
        name: Name of the method.
        options: Values by option, as text.
    """

    name: str
    options: Mapping[str, str]

    @property
    def label(self) -> str:
        return self.name + "".join(f" {k}={v}" for k, v in self.options.items())


def parse_method_setting(item: str) -> MethodSetting:
    """Parse `name:option=value:option=value`.

    Raises:
        RequestError: The method is unknown, or the options have another form.
    """
    name, *pairs = item.strip().split(":")
    # Raises RequestError for an unknown name.
    registry.get_recipe_module(name)
    options: dict[str, str] = {}
    for pair in pairs:
        key, eq, value = pair.partition("=")
        if not eq:
            raise RequestError(
                f"methods holds {item!r}: options are written as {name}:option=value"
            )
        options[key] = value
    return MethodSetting(name, options)


def spelt_all(items: str) -> list[MethodSetting]:
    """Parse several settings with commas between them; a comma before a digit belongs to an option.

    Raises:
        RequestError: As `parse_method_setting` does.
    """
    return [parse_method_setting(item) for item in re.split(r",(?!\s*\d)", items)]


@dataclass(frozen=True)
class BenchTask:
    """Requests that run together.

    Attributes:
        workload: Name of the workload.
        prompts: Their prompts; one where the batch is 1.
        raw: Whether prompts go in without the chat template. Default false.
        wanted: Of each prompt the check of its answer, None where it has none; empty where no
            prompt has one.
    """

    workload: str
    prompts: tuple[Prompt, ...]
    raw: bool = False
    wanted: tuple[AnswerCheck | None, ...] = ()


@dataclass(frozen=True)
class BenchRun:
    """One task by one method. `tokens` and `seconds` count decoding only: without the first pass of
    each request.

    Attributes:
        task: Number of the task.
        repeat: Number of the repetition.
        tokens: Tokens after the first pass of each request.
        seconds: Seconds from the first token to the last.
        whole_seconds: Seconds from the first request's start to the last token.
        generated: Tokens in all.
        passes: Passes of the model.
        positions: Positions that all models were fed.
        drafts: Drafts that were verified.
        accepted: Draft tokens that were accepted.
        ids: Token ids of each answer.
        distinct: Mean share of different 4-grams of an answer.
        firsts: Seconds to the first token of each request.
        gaps: Seconds between two moments at which tokens of a request came.
        accepted_at: As in `DraftStats`.
        tried_at: As in `DraftStats`.
        target_seconds: Seconds in passes of the target.
        other_seconds: Seconds in passes of all other models.
        cache_bytes: Bytes of all caches at their largest.
        joules: Energy of the processor; None where the machine does not say.
        right: Of each request whether its answer is right; None where it has no check.
    """

    task: int
    repeat: int
    tokens: int
    seconds: float
    whole_seconds: float
    generated: int
    passes: int
    positions: int
    drafts: int
    accepted: int
    ids: tuple[tuple[int, ...], ...]
    distinct: float
    firsts: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    accepted_at: tuple[int, ...] = ()
    tried_at: tuple[int, ...] = ()
    target_seconds: float = 0.0
    other_seconds: float = 0.0
    cache_bytes: int = 0
    joules: float | None = None
    right: tuple[bool | None, ...] = ()


@dataclass
class TokenArrivals:
    """An observer of one request: when its tokens came, and how large the engine's caches were
    then.

    Attributes:
        engine: The engine that runs the request.
        at: Moments of arrival, seconds of `time.perf_counter`.
        cached: The largest size of the caches seen, bytes.
    """

    kinds = (EditedEvent,)
    engine: Engine
    at: list[float] = field(default_factory=list[float])
    cached: int = 0

    def __call__(self, event: TraceEvent) -> None:
        if isinstance(event, EditedEvent) and event.tokens:
            self.at.append(time.perf_counter())
            # The first arrival and every LOOK-th after it.
            if len(self.at) % LOOK == 1:
                self.cached = max(self.cached, self.engine.cached)

    @property
    def gaps(self) -> list[float]:
        """Seconds between one arrival and the next, to a microsecond."""
        return [round(b - a, 6) for a, b in pairwise(self.at)]


LOOK = 16
"""Of so many arrivals one looks how large the caches are, the first among them: it takes a while to
add them up."""


def distinct_4grams(ids: Sequence[int]) -> float:
    """The share of different 4-grams of a text: low where it loops. 1 for texts of less than four
    tokens.
    """
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    if grams:
        return len(set(grams)) / len(grams)
    return 1.0


def run_task(
    lm: LoadedModel, method: MethodSetting, task: BenchTask, at: int, repeat: int, **request: Any
) -> BenchRun:
    """Run one task by one method and measure it.

    Args:
        lm: The loaded model.
        method: The method and its options.
        task: The requests, which run together.
        at: Number of the task.
        repeat: Number of the repetition.
        request: What else the requests hold, such as `sampling` and `max_tokens`.

    Returns:
        What was measured.
    """
    engine = Engine(lm)
    # One observer for each request, as gaps between arrivals are a request's own.
    watching = [TokenArrivals(engine) for _ in task.prompts]
    tickets = [
        engine.submit(p, method=method.name, options=method.options, raw=task.raw, on=on, **request)
        for p, on in zip(task.prompts, watching, strict=True)
    ]
    # Submitting is left out of the energy.
    before = energy.read_energy_counters()
    answers = engine.run(tickets)
    after = energy.read_energy_counters()
    if before is None or after is None:
        used = None
    else:
        used = energy.joules_between(before, after)
    return summarise_run(tickets, answers, at, repeat, watching, used, task.wanted)


def summarise_run(
    tickets: Sequence[Ticket],
    answers: Sequence[Completion],
    at: int,
    repeat: int,
    watching: Sequence[TokenArrivals] = (),
    joules: float | None = None,
    wanted: Sequence[AnswerCheck | None] = (),
) -> BenchRun:
    """Sum up finished requests that ran together.

    Args:
        tickets: Their tickets, at least one.
        answers: Their answers, in the same order.
        at: Number of the task.
        repeat: Number of the repetition.
        watching: Observers of the requests; empty: none.
        joules: Energy of the processor; None: unknown.
        wanted: The check of each answer; empty: none.

    Returns:
        What was measured.
    """
    watches = [t.watch for t in tickets]
    stats: list[Any] = [r.stats for ticket in tickets for r in ticket.results]
    begun = min(w.opened for w in watches)
    ended = max(w.last for w in watches)
    # Answers of all requests, in order of submission: texts of two methods are compared by them.
    ids = tuple(c.token_ids for a in answers for c in a.choices)
    generated = sum(map(len, ids))
    # Decoding begins where the first request has its first token: prompts are fed before.
    first = min(w.first or w.last for w in watches)
    drafted = [s for s in stats if isinstance(s, DraftStats)]
    used = [u for t in tickets if t.task is not None for u in t.task.usage.items()]
    target = tickets[0].engine.model.network
    if drafted:
        counted = drafted[0]
    else:
        counted = DraftStats()
    # Counts of all requests together; methods without drafts have none.
    for further in drafted[1:]:
        counted = counted.plus_stats(further)
    return BenchRun(
        at,
        repeat,
        # What the first pass of each request gave is not in the time of decoding.
        generated - sum(s.first for s in stats),
        ended - first,
        ended - begun,
        generated,
        sum(s.passes for s in stats),
        sum(m["positions_fed"] for a in answers for m in a.metrics["models"]),
        counted.drafts,
        counted.accepted,
        ids,
        statistics.fmean(map(distinct_4grams, ids)),
        firsts=tuple(a.metrics["time_to_first_token"] for a in answers),
        gaps=tuple(gap for watched in watching for gap in watched.gaps),
        accepted_at=counted.accepted_at,
        tried_at=counted.tried_at,
        target_seconds=sum(u.seconds for model, u in used if model is target),
        other_seconds=sum(u.seconds for model, u in used if model is not target),
        cache_bytes=max((watched.cached for watched in watching), default=0),
        joules=joules,
        # Of problems without a known answer nothing can be said.
        right=tuple(
            None if want is None else want.is_right(a.text)
            for want, a in zip(wanted, answers, strict=False)
        ),
    )


def measure_methods(
    lm: LoadedModel,
    methods: Sequence[MethodSetting],
    tasks: Sequence[BenchTask],
    *,
    sampling: Sampling,
    max_tokens: int,
    repeats: int,
    seed: int = 0,
    tick: Callable[[str], None] = lambda label: None,
    into: dict[str, list[BenchRun]] | None = None,
    keep: Callable[[str, BenchRun], None] = lambda label, run: None,
) -> dict[str, list[BenchRun]]:
    """Run every method on every task `repeats` times, in turns: their order rotates by one each
    turn.

    The first task is run once by the first method before anything is counted (caches, lazy
    initialisation).

    Args:
        lm: The loaded model.
        methods: The methods, with different labels.
        tasks: The tasks.
        sampling: Sampling rules of all requests.
        max_tokens: Tokens of an answer at most.
        repeats: Repetitions of every task, at least 1.
        seed: Names the randomness. Default 0.
        tick: Called with a label before each run, for a progress line.
        into: Filled run by run and returned, so that what was measured before a failure is not
            lost. A turn that all methods have there already is not run again. None: an empty one.
        keep: Called with each run as soon as it is measured.

    Returns:
        Runs by label of the method.
    """
    runs = {} if into is None else into
    for m in methods:
        runs.setdefault(m.label, [])
    # A turn counts as done only where every method has it: runs of one turn are compared.
    done = set.intersection(*({(r.task, r.repeat) for r in runs[m.label]} for m in methods))
    turns = [(n, at) for n in range(repeats) for at in range(len(tasks)) if (at, n) not in done]
    if not turns:
        return runs
    # A run that warms up: caches of the processor, imports, lazily made tables. It is not counted.
    run_task(
        lm, methods[0], tasks[0], 0, 0, sampling=sampling, max_tokens=min(16, max_tokens), seed=seed
    )
    for repeat, at in turns:
        task = tasks[at]
        # The order rotates, so that no method always runs on the coolest, or warmest, machine.
        turn = (repeat + at) % len(methods)
        for m in [*methods[turn:], *methods[:turn]]:
            tick(f"{m.label}: {task.workload}")
            run = run_task(
                lm, m, task, at, repeat, sampling=sampling, max_tokens=max_tokens, seed=seed
            )
            # Stored before anything else can fail.
            keep(m.label, run)
            runs[m.label].append(run)
    return runs


def median_speed(runs: Sequence[BenchRun]) -> float:
    """Tokens per second over all tasks, each counted with the median of its seconds."""
    tokens = seconds = 0.0
    for at in {r.task for r in runs}:
        # The median over repetitions, task by task: one slow repetition does not count.
        mine = [r for r in runs if r.task == at]
        tokens += statistics.median(r.tokens for r in mine)
        seconds += statistics.median(r.seconds for r in mine)
    if seconds > 0:
        return tokens / seconds
    return 0.0


def speed_ratio_interval(
    ours: Sequence[BenchRun], plain: Sequence[BenchRun], draws: int = 2000
) -> tuple[float, float]:
    """The 95 % bootstrap interval of a ratio of speeds.

    Pairs of runs of one task and repetition are resampled, as they ran one after the other.

    Args:
        ours: Runs of the method.
        plain: Runs of the other side.
        draws: Bootstrap samples. Default 2000.

    Returns:
        Lower and upper end; NaN where there is no pair, or no time was measured.
    """
    base = {(r.task, r.repeat): r for r in plain}
    rows = np.array(
        [
            (r.tokens, r.seconds, base[r.task, r.repeat].tokens, base[r.task, r.repeat].seconds)
            for r in ours
            if (r.task, r.repeat) in base
        ]
    )
    if not len(rows):
        return (float("nan"), float("nan"))
    at = np.random.default_rng(0).integers(0, len(rows), (draws, len(rows)))
    # Sums of tokens and seconds of both sides over each resample's pairs.
    t1, s1, t0, s0 = np.moveaxis(rows[at].sum(1), -1, 0)
    # A resample without measured time has no ratio.
    ok = (t0 > 0) & (s1 > 0) & (s0 > 0)
    if not ok.any():
        return (float("nan"), float("nan"))
    low, high = np.quantile((t1[ok] / s1[ok]) / (t0[ok] / s0[ok]), (0.025, 0.975))
    return float(low), float(high)


def bench_table_rows(
    lm: LoadedModel,
    runs: Mapping[str, Sequence[BenchRun]],
    tasks: Sequence[BenchTask],
    plain: str = "plain",
) -> list[dict[str, Any]]:
    """Make the table: one row for each method and workload, and for each method over all ("all")
    where there are several.

    Args:
        lm: The loaded model.
        runs: Runs by label of the method.
        tasks: The tasks that the runs number.
        plain: Label of the method that others are compared with. Default "plain".

    Returns:
        The rows, ready for JSON.
    """
    workloads = list(dict.fromkeys(t.workload for t in tasks))
    # Tasks of each workload, and all of them where there are several workloads.
    groups = [
        *((w, {i for i, t in enumerate(tasks) if t.workload == w}) for w in workloads),
        *([("all", set(range(len(tasks))))] if len(workloads) > 1 else []),
    ]
    rows: list[dict[str, Any]] = []
    for label, mine in runs.items():
        for workload, among in groups:
            ours = [r for r in mine if r.task in among]
            base = [r for r in runs.get(plain, ()) if r.task in among]
            # A bench that ended early has not come to this workload.
            if not ours:
                continue
            # A pair without a partner counts as identical: there is nothing to compare it with.
            same = {(r.task, r.repeat): r.ids for r in base}
            passes = sum(r.passes for r in ours)
            drafts = sum(r.drafts for r in ours)
            # One row for each method, workload and size of batch.
            rows.append(
                {
                    "model": lm.name,
                    "method": label,
                    "workload": workload,
                    "batch": max(len(tasks[i].prompts) for i in among),
                    "tokens_per_second": median_speed(ours),
                    "ratio_to_plain": median_speed(ours) / median_speed(base)
                    if base and median_speed(base)
                    else None,
                    "ratio_interval": list(speed_ratio_interval(ours, base)) if base else None,
                    "tokens_per_pass": sum(r.generated for r in ours) / passes if passes else None,
                    # Repeats feed the same positions, so one of them is counted.
                    "positions_fed": sum(r.positions for r in ours if r.repeat == 0),
                    "mean_acceptance_length": 1 + sum(r.accepted for r in ours) / drafts
                    if drafts
                    else 1.0,
                    "identical": all(r.ids == same.get((r.task, r.repeat), r.ids) for r in ours)
                    if base
                    else None,
                    "whole_tokens_per_second": sum(r.generated for r in ours)
                    / sum(r.whole_seconds for r in ours),
                    "distinct_4grams": statistics.fmean(r.distinct for r in ours),
                    "kernel": lm.checkpoint.kernel,
                    **further_figures(ours),
                }
            )
    return rows


def further_figures(runs: Sequence[BenchRun]) -> dict[str, Any]:
    """Figures besides speed: waiting, depth of drafts, shares of the time, memory, energy, right
    answers.

    `accepted_at[d]` is the share of all drafts that had d + 1 levels accepted, `of_those_tried[d]`
    the share of those that were so deep. Shares of time are of the whole time, the prompt's pass
    included.
    """
    firsts = [x for r in runs for x in r.firsts]
    gaps = [x for r in runs for x in r.gaps]
    drafts = sum(r.drafts for r in runs)
    whole = sum(r.whole_seconds for r in runs)
    deep = max((len(r.tried_at) for r in runs), default=0)
    # Sums over runs, level by level; a run with shallower drafts has nothing at the deeper ones.
    accepted, tried = (
        [sum(levels[d] for levels in counts if d < len(levels)) for d in range(deep)]
        for counts in ([r.accepted_at for r in runs], [r.tried_at for r in runs])
    )
    target, others = (
        sum(x) / whole if whole else 0.0
        for x in ([r.target_seconds for r in runs], [r.other_seconds for r in runs])
    )
    # Energy is reported only where every run has it: a share of the runs would mislead.
    joules = [r.joules for r in runs if r.joules is not None]
    first = min((r.repeat for r in runs), default=0)
    # A text is the same in every repetition: each answer counts once.
    judged = [x for r in runs if r.repeat == first for x in r.right if x is not None]
    return {
        "time_to_first_token": statistics.median(firsts) if firsts else None,
        "gap": statistics.median(gaps) if gaps else None,
        "gap_99": float(np.quantile(gaps, 0.99)) if gaps else None,
        # Of all drafts, and below of those only that reached the level.
        "accepted_at": [a / drafts for a in accepted],
        "of_those_tried": [a / t for a, t in zip(accepted, tried, strict=True)],
        "target_share": target,
        "other_share": others,
        "rest_share": max(0.0, 1.0 - target - others),
        "cache_bytes": max((r.cache_bytes for r in runs), default=0),
        # Energy is told only where every run was measured.
        "joules_per_token": sum(joules) / sum(r.generated for r in runs)
        if len(joules) == len(runs) and joules
        else None,
        "right": sum(judged) / len(judged) if judged else None,
        "right_interval": list(wilson_interval(sum(judged), len(judged))) if judged else None,
        "judged": len(judged),
    }
