"""How far is a replay from the run that it stands for? One setting is recorded; others are replayed from it, and run live.

    POLYDEC_DATA=… python benchmarks/replay_live.py --csv lab/reports/replay-live.csv

Held-out prompts, one request at a time, greedy. Beside each run the recorded setting runs too, by turns before and behind it.
A row a setting: tokens a pass and tokens a second, as replayed and as run, over all prompts together, and their error; the load
of the machine beside them, since seconds mean nothing on a busy one. There --processor counts seconds of processor time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from csv_rows import write_csv

from polydec import api
from polydec.core.scheduler import RequestPass
from polydec.core.trace import TraceEvent
from polydec.lab.bench.recorded_target import RecordedAnswer, ReplayRound, ReplayRun, replay_run
from polydec.lab.bench.replay_times import RecordClock
from polydec.lab.train.data import data_root, held_out, read_rows
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.request.request_records import pass_events

Setting = tuple[str, Mapping[str, Any]]
RECORDED: Setting = ("prompt-lookup", {})
OTHERS: tuple[Setting, ...] = (
    ("plain", {}),
    ("prompt-lookup", {"depth": 3, "cost_aware": False}),
    ("suffix-automaton", {}),
    ("copyspec", {}),
    ("draft-model", {"depth": 2}),
    ("auto", {}),
)


@dataclass(frozen=True)
class Run:
    """An answer that was written live."""

    record: RecordedAnswer
    rounds: list[ReplayRound]
    clock: RecordClock | None


@dataclass
class Sum:
    """Of a setting, over prompts and turns."""

    tokens: int = 0
    timed: int = 0  # of these, behind the first pass
    replayed_passes: int = 0
    passes: int = 0
    replayed_seconds: float = 0.0
    seconds: float = 0.0
    same: list[bool] = field(default_factory=list[bool])


def live(lm: api.LoadedModel, prompt: str, setting: Setting, tokens: int) -> Run:
    """One answer, with its rounds and its clock."""
    name, options = setting
    rounds, passes, drafted = list[ReplayRound](), list[RequestPass](), 0

    def on(event: TraceEvent) -> None:
        nonlocal drafted
        if isinstance(event, ProposedEvent):
            drafted = len(event.token) - 1
        elif isinstance(event, VerifiedEvent):
            rounds.append(ReplayRound(event.position, drafted, len(event.path)))

    engine = api.Engine(lm)
    ask = api.Ask(prompt, method=name, options=dict(options), max_tokens=tokens)
    ticket = engine.submit(ask, on=on, passes=passes)
    while not ticket.done:
        engine.step()
    answer, request = ticket.completion(), ticket.plan.request
    vocab = lm.checkpoint.lm.vocab
    record = RecordedAnswer(
        request.prompt, answer.token_ids, vocab.size, vocab.eos, limit=request.max_tokens
    )
    return Run(
        record, rounds, RecordClock.of_rounds(rounds, list(pass_events(lm, passes)), lm.name)
    )


def measure(
    lm: api.LoadedModel, prompts: list[str], settings: Sequence[Setting], tokens: int, repeat: int
) -> dict[str, Sum]:
    """Settings on all prompts. Each run has a record of its own beside it, by turns before and behind it: a machine changes
    its speed within seconds."""
    draft, sums = ShapedTarget(lm.draft_law(), GreedyRule()), dict[str, Sum]()

    def again(record: RecordedAnswer, setting: Setting) -> ReplayRun:
        """The second of two, which finds caches as warm as the other ones."""
        replay_run(record, *setting, draft, lm.costs, lm.artefacts)
        return replay_run(record, *setting, draft, lm.costs, lm.artefacts)

    for turn in range(repeat):
        for prompt in prompts:
            for setting in settings:
                pair = [RECORDED, setting] if turn % 2 else [setting, RECORDED]
                runs = [live(lm, prompt, each, tokens) for each in pair]
                recorded, ran = runs if turn % 2 else runs[::-1]
                known = sums.setdefault(named(setting), Sum())
                assert recorded.clock is not None and ran.clock is not None
                own, other = again(recorded.record, RECORDED), again(recorded.record, setting)
                known.tokens += len(ran.record.tokens)
                known.timed += len(ran.record.tokens) - ran.rounds[0].accepted - 1
                known.replayed_passes += len(other.rounds)
                known.passes += len(ran.rounds)
                known.replayed_seconds += recorded.clock.predict_seconds(own, other, lm.costs)
                known.seconds += ran.clock.seconds
                known.same.append(other.rounds == ran.rounds)
    return sums


def named(setting: Setting) -> str:
    name, options = setting
    return " ".join([name, *(f"{k}={v}" for k, v in options.items())])


def row(name: str, s: Sum, load: float) -> dict[str, Any]:
    return {
        "setting": name,
        "runs": len(s.same),
        "pass_for_pass": sum(s.same),
        "tokens_a_pass": f"{s.tokens / s.passes:.3f}",
        "replayed": f"{s.tokens / s.replayed_passes:.3f}",
        "error": f"{100 * (s.passes / s.replayed_passes - 1):.1f}",
        "tokens_a_second": f"{s.timed / s.seconds:.1f}",
        "replayed_a_second": f"{s.timed / s.replayed_seconds:.1f}",
        "error_a_second": f"{100 * (s.seconds / s.replayed_seconds - 1):.1f}",
        "load": f"{load:.2f}",
    }


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--model", default="zoo:smollm2")
    ask.add_argument("--prompts", type=int, default=12)
    ask.add_argument("--tokens", type=int, default=96)
    ask.add_argument("--repeat", type=int, default=2)
    ask.add_argument("--threads", type=int)
    ask.add_argument("--csv")
    ask.add_argument("--only", nargs="+", help="settings, as the table names them")
    ask.add_argument("--processor", action="store_true", help="seconds of processor time")
    asked = ask.parse_args()
    if asked.processor:
        # Profile, passes and replays all read this clock.
        time.perf_counter = time.process_time
    lm = api.load(asked.model, threads=asked.threads)
    rows = read_rows(data_root() / "spec_bench" / "question.jsonl")
    texts = [text for r in rows if held_out(text := r["turns"][0]) and len(text) < 2000]
    prompts = texts[:: max(1, len(texts) // asked.prompts)][: asked.prompts]
    live(lm, prompts[0], OTHERS[-1], 8)  # what passes cost is measured when somebody first asks
    before = os.getloadavg()[0]
    settings = [s for s in (RECORDED, *OTHERS) if not asked.only or named(s) in asked.only]
    sums = measure(lm, prompts, settings, asked.tokens, asked.repeat)
    load = max(before, os.getloadavg()[0])
    out = [row(name, s, load) for name, s in sums.items()]
    for r in out:
        print(r, flush=True)
    if asked.csv:
        write_csv(asked.csv, out)


if __name__ == "__main__":
    main()
