"""polydec batch: a file of requests, answered into another one."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from polydec import api
from polydec.base import files
from polydec.base.edge import require_integer
from polydec.base.errors import MissingError, RequestError, UnwritableError
from polydec.base.interrupts import said_when_stopped
from polydec.cli import prompts
from polydec.cli.declared_flags import expand_flag_parameters
from polydec.cli.flags import BENT, RequestFlags
from polydec.cli.generate import open_trace_file, print_unused_settings
from polydec.request.batching import BatchingMode, batching_by_name
from polydec.serve.settings import request_limit_options

RUNNING = request_limit_options()["running"]
EVERY = 2.0
"""Seconds between two lines of progress."""

REQUESTED = frozenset(("max_tokens", "max_completion_tokens", "method", "seed", "stop"))
"""Fields of a request that are not of sampling, and that no set of questions has for its own."""

ELSEWHERE = (
    "model",
    "draft",
    "ngrams",
    "with_",
    "method",
    "seed",
    "dtype",
    "quantize",
    "compute",
    "cache_dtype",
    "device",
    "threads",
    "workers",
)
"""Flags that do not say how a prompt is answered, or say so of requests with a body as well."""


@expand_flag_parameters
def batch(
    flags: RequestFlags,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="OpenAI's batch form, or prompts: a JSON object or a text a line"
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="a row for each line; what is there already is kept"),
    ],
    max_running: Annotated[
        int, typer.Option(help=f"{RUNNING.help} (by each process; {RUNNING.range})")
    ] = RUNNING.default,
    batching: Annotated[
        str,
        typer.Option(
            help="how answers share passes: ragged; or, on the torch path, eqspec (padded and realigned), exspec (by length)"
        ),
    ] = "ragged",
    pass_rows: Annotated[
        int, typer.Option(help="answers of a pass of eqspec and exspec (1 to 4096)")
    ] = 8,
    ray: Annotated[
        int, typer.Option(help="processes, by Ray Data on this machine (polydec[ray]); 0: this one")
    ] = 0,
) -> None:
    """Answer a file of requests. Stopped or killed, the same command goes on where it was. --trace writes what happened to all
    requests of this run, with the passes that they shared.\f

    Args:
        flags: Model, method and sampling of requests that do not say otherwise.
        path: File of requests: OpenAI's batch form, or a prompt a line.
        out: File of answers, a row for each line; rows that are there already are kept.
        max_running: Answers that are written at the same time, by each process.
        batching: How answers share passes: "ragged", "eqspec" or "exspec". Default "ragged".
        pass_rows: Answers of a pass of the last two, 1 to 4096. Default 8.
        ray: Processes of Ray Data, 0 or more. Default 0: this one alone.
    """
    from polydec.serve import batch as rows

    if flags.json_:
        raise RequestError("batch does not take --json: rows are JSON objects as they are")
    if flags.trace is not None and ray:
        raise RequestError("batch does not take --trace with --ray: a trace is of one process")
    RUNNING.convert_value(max_running)
    shared_by = batching_by_name(batching, require_integer("pass_rows", pass_rows, 1, 4096))
    if require_integer("ray", ray, 0, 64) and find_spec("ray") is None:
        raise MissingError(f"ray is {ray}: that needs ray: pip install 'polydec[ray]'")
    # The whole file is read first: progress counts its lines.
    text = prompts.read_text(path)
    lines = rows.lines_of(text, _settings(flags))
    if not lines:
        raise RequestError(f"file {str(path)!r} holds no request")
    flags.check_names()
    _check_flags(flags, next((line.at for line in lines if line.is_request), None))
    # Any other text file holds one prompt a line.
    as_text = ".jsonl" not in path.name and not text.lstrip().startswith("{")
    try:
        # Two runs that append to one file would answer every line twice.
        with files.hold_file_lock(out, wait=0.0):
            # Rows of an earlier run with the same settings count as done.
            done = rows.resume_batch_output(out, lines)
            tally = rows.BatchProgress(len(lines), len(done))
            # Before the model is loaded, which takes seconds.
            if len(done) == len(lines):
                print(f"polydec: nothing is left: {tally.progress_sentence()}", file=sys.stderr)
                return
            lm = flags.load()
            lm.check_method(flags.method, flags.option_values())
            _say_what_is_idle(lm, flags, lines)
            if not as_text:
                _say_which_fields_are_unread(lines)
            with _watched(lm, flags.trace) as submit, out.open("ab", buffering=0) as file:
                job: Any = _job(lm, flags, path, as_text, max_running, shared_by, submit=submit)
                # The model was loaded for the checks alone: each process of Ray loads its own.
                if ray:
                    from polydec.serve.spread import RayBatchRunner

                    each = flags.threads or max(1, (os.cpu_count() or 1) // ray)
                    alone = dataclasses.replace(flags, threads=each)
                    make = partial(_loaded, alone, path, as_text, max_running, shared_by)
                    job = RayBatchRunner(ray, make, max_running)
                _run(job, lines, done, rows.batch_row_writer(file), tally)
    except UnwritableError:
        # It is of another file, and names it.
        raise
    except OSError as error:
        raise RequestError(
            f"file {str(out)!r} cannot be written: {error.strerror or error}"
        ) from None


@contextmanager
def _watched(lm: api.LoadedModel, into: Path | None) -> Iterator[Any]:
    """How requests are asked: where a trace is wanted, by one who writes down what happens to them."""
    from polydec.request.request_records import TraceWriter
    from polydec.serve.batch import submit_without_trace

    if into is None:
        yield submit_without_trace
        return
    with open_trace_file(into) as file:
        company = TraceWriter(lm, file)
        try:
            yield company.submit_traced
        finally:  # also where it is stopped
            company.close()


def _say_what_is_idle(lm: api.LoadedModel, flags: RequestFlags, lines: Sequence[Any]) -> None:
    """What the flags give and no prompt makes use of; requests with a body of their own say
    themselves what they want."""
    from polydec.methods.economics.costs import PassCosts
    from polydec.request.ask import plan_request

    ask = api.Ask("x", **flags.request_fields(lm))
    if not any(line.is_request for line in lines):
        print_unused_settings(lm, plan_request(lm, ask, measure=PassCosts))


def _say_which_fields_are_unread(lines: Sequence[Any]) -> None:
    """What lines say beside a prompt as if they were requests: flags answer for all prompts."""
    for line in lines:
        unread = sorted((BENT | REQUESTED).intersection(line.envelope_fields))
        if unread and not line.is_request:
            print(
                f"polydec: line {line.at} gives {', '.join(unread)} beside a prompt, where no field but the prompt is read: "
                'the flags say it for all prompts, and a line with a "body" says its own',
                file=sys.stderr,
            )
            # The others are most likely alike.
            return


def _job(
    lm: api.LoadedModel,
    flags: RequestFlags,
    path: Path,
    as_text: bool,
    running: int,
    batching: BatchingMode,
    names: Mapping[str, int] | None = None,
    submit: Any = None,
) -> Any:
    """Lines to requests of this model. as_text: a line that is no request is a prompt as it stands."""
    from polydec.serve import batch as rows

    request = flags.request_fields(lm)

    def own_prompt(line: rows.BatchLine) -> api.Ask:
        if as_text:
            row = prompts.PromptRow(line.text.strip(), "")
        else:
            row = prompts.parse_prompt_row(line.text, line.at, path, "", lm, None)
        # A row may say for itself that it goes in without the chat template.
        return api.Ask(row.prompt, **{**request, "raw": request["raw"] or row.raw})

    return rows.BatchRunner(
        lm,
        flags.model,
        method=flags.method,
        seed=flags.seed,
        own=own_prompt,
        running=running,
        names=names,
        batching=batching,
        submit=submit or rows.submit_without_trace,
    )


def _loaded(
    flags: RequestFlags,
    path: Path,
    as_text: bool,
    running: int,
    batching: BatchingMode,
    names: Mapping[str, int],
) -> Any:
    """The same in a process of its own, which loads the model."""
    return _job(flags.load(), flags, path, as_text, running, batching, names)


def _run(job: Any, lines: Any, done: list[int], write: Any, tally: Any) -> None:
    """Answer, and say how far it is."""
    last = time.perf_counter()

    def told_row(row: dict[str, Any]) -> None:
        nonlocal last
        # Written at once: a run that is killed loses no finished row.
        write(row)
        if time.perf_counter() - last > EVERY:
            last = time.perf_counter()
            print(f"polydec: {tally.progress_sentence()}", file=sys.stderr, flush=True)

    with said_when_stopped(
        lambda: f"stopped at {tally.progress_sentence()}; the same command goes on from here"
    ):
        job.answer_lines(lines, done, told_row, tally)
    print(f"polydec: {tally.progress_sentence()}", file=sys.stderr)


def _settings(flags: RequestFlags) -> str:
    """What decides an answer beside its line: rows of other settings are not gone on with."""
    # Threads, workers and traces do not change an answer.
    known = dataclasses.asdict(dataclasses.replace(flags, threads=None, trace=None, workers=1))
    return json.dumps(known, sort_keys=True, default=str)


def _check_flags(flags: RequestFlags, request: int | None) -> None:
    """Flags of a prompt's answer do nothing for lines that say that themselves: such a line is
    `request`."""
    if request is not None and (flag := flags.first_foreign_flag(ELSEWHERE)) is not None:
        raise RequestError(
            f"--{flag} is given, and line {request} is a request of its own: write it into the body"
        )
