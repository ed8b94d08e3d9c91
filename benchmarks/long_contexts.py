"""Long contexts: what a prompt of so many tokens takes, and each token behind it, with caches of several widths.

    python benchmarks/long_contexts.py lab/reports/long-contexts.csv --contexts 8000
    python benchmarks/random_gguf.py FILE --shape 30 576 9 3 1536 49152 --type Q4_1 --tokenizer SMOLLM2.gguf
    python benchmarks/long_contexts.py lab/reports/long-contexts.csv --model FILE --named random --contexts 8000 16000

zoo:smollm2 reads at most 8,192 tokens, so that longer contexts need another model; random weights of its shape and tokenizer
take its time a pass, and what they write says nothing. A context is a beginning of half a book. Of each cache the prompt is fed
once, by a plain answer of one token, and counted; then `plain` and `auto` go on from what is held of it, in turns, and the
seconds behind their first token are counted. Rows of the file that were there are replaced.

- prompt: seconds; positions: positions a second
- plain, auto: milliseconds a token, the median over turns; passes: tokens a pass of `auto`
- over: `auto` over plain, the median of the turns' ratios; low, high: the least and the most of them
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from csv_rows import merge_csv
from front_page import TokenMoments, costs_by
from presses import text

from polydec import Ask, Engine, LoadedModel, Sampling, load
from polydec.base.errors import RequestError
from polydec.request.machine import describe_machine, relative_cpu_load

CACHES: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "int8": {"cache": "quantised", "cache_options": {"bits": "8"}},
    "int4": {"cache": "quantised", "cache_options": {"bits": "4"}},
}


@dataclass(frozen=True)
class TimedAnswer:
    """One answer: seconds to its first token and behind it, tokens behind it, passes of all of it."""

    first: float
    behind: float
    tokens: int
    passes: int


def timed_answer(
    lm: LoadedModel,
    ids: tuple[int, ...],
    method: str,
    tokens: int,
    cache: Mapping[str, Any],
    clock: Callable[[], float],
) -> TimedAnswer:
    """A greedy answer of so many tokens, whatever ends a text."""
    engine, moments = Engine(lm), TokenMoments(clock)
    begun = clock()
    ticket = engine.submit(
        Ask(
            ids,
            raw=True,
            method=method,
            max_tokens=tokens,
            ignore_eos=True,
            sampling=Sampling(temperature=0.0),
            **cache,
        ),
        on=moments,
    )
    engine.run([ticket])
    first = moments.came[0][0]
    return TimedAnswer(
        first - begun,
        moments.came[-1][0] - first,
        sum(count for at, count in moments.came if at > first),
        ticket.results[0].stats.passes,
    )


def measure_context(
    lm: LoadedModel,
    ids: tuple[int, ...],
    tokens: int,
    turns: int,
    cache: Mapping[str, Any],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """The figures of one context with one cache."""
    fed = timed_answer(lm, ids, "plain", 1, cache, clock)
    took = {method: list[float]() for method in ("plain", "auto")}
    passes = 0
    for turn in range(turns):
        for method in list(took)[:: -1 if turn % 2 else 1]:
            answer = timed_answer(lm, ids, method, tokens, cache, clock)
            took[method].append(1e3 * answer.behind / answer.tokens)
            if method == "auto":
                passes += answer.passes
    ratios = [plain / auto for plain, auto in zip(*took.values(), strict=True)]
    return {
        "prompt": round(fed.first, 2),
        "positions": round(len(ids) / fed.first),
        **{method: round(median(ms), 2) for method, ms in took.items()},
        "over": round(median(ratios), 2),
        "low": round(min(ratios), 2),
        "high": round(max(ratios), 2),
        "passes": round(turns * tokens / passes, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path, help="file to write")
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--named", help="what the file calls the model (default: its name)")
    parser.add_argument("--contexts", type=int, nargs="+", default=[8000])
    parser.add_argument("--caches", nargs="+", choices=list(CACHES), default=list(CACHES))
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of a pass (default: the machine's cores)")
    parser.add_argument(
        "--processor",
        action="store_true",
        help="seconds of this process's processor time: beside other load, with --threads 1",
    )
    given = parser.parse_args()
    clock = time.process_time if given.processor else time.perf_counter
    lm = load(given.model, threads=given.threads)
    room = lm.network.context - given.tokens
    if max(given.contexts) > room:
        raise RequestError(
            f"contexts has {max(given.contexts)}: {given.model} has room for at most {room}"
        )
    lm.__dict__["costs"] = costs_by(lm, clock)
    # What was fed is kept for the next answer, of one prompt at a time.
    lm.checkpoint.lm.keep = 1
    before = relative_cpu_load()
    read = lm.encode(text(max(given.contexts)))
    for context in given.contexts:
        for name in given.caches:
            figures = measure_context(
                lm, tuple(read[:context]), given.tokens, given.turns, CACHES[name], clock
            )
            row = {
                "model": given.named or given.model,
                "kernel": lm.checkpoint.kernel,
                "threads": lm.network.threads,
                "context": context,
                "cache": name,
            } | figures
            print(row, flush=True)
            merge_csv(given.csv, [row], ("model", "kernel", "threads", "context", "cache"))
    print(
        f"{describe_machine(lm.network)}; load before {before:.2f}, after {relative_cpu_load():.2f}"
    )


if __name__ == "__main__":
    main()
