"""polydec generate: decode one prompt and stream the text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text as Styled

from polydec import api
from polydec.base.edge import error_sentence, escape_control_characters, whole_text
from polydec.base.errors import RequestError, UnwritableError
from polydec.base.files import NamedText
from polydec.base.interrupts import SigtermInterrupt
from polydec.cli import prompts
from polydec.cli.declared import expand_flag_parameters
from polydec.cli.flags import RequestFlags, SteeringFlags
from polydec.cli.shown import terminal_text
from polydec.core.scheduler import RequestPass
from polydec.core.trace import OpenedEvent, TraceEvent, ignore_event, to_json
from polydec.models.formats.thinking_marks import Segment, ThinkingReader, ThinkingSegmentKind

if TYPE_CHECKING:
    from polydec.request.stages import RequestPlan

SHOTS = 8
"""Solved problems that are shown, where there are some."""


@expand_flag_parameters
def generate(
    flags: RequestFlags,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; `-` or nothing: standard input")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="read the prompt from this file")] = None,
    exemplars: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines of solved problems; those of the most steps "
            "are shown before the prompt"
        ),
    ] = None,
    shots: Annotated[int | None, typer.Option(help=f"how many of them (default: {SHOTS})")] = None,
    steered: SteeringFlags = SteeringFlags(),  # noqa: B008
) -> None:
    """Decode one prompt. Text streams to standard output; accepted drafts are green on a terminal."""
    sourced = flags.written_from is not None
    alone = sourced and prompt is None and prompt_file is None
    if alone:
        text = ""
    else:
        text = read_prompt_text(prompt, prompt_file)
    if not alone and not text:
        raise RequestError("prompt is empty: give a text of at least one character")
    if shots is not None and exemplars is None:
        raise RequestError(
            f"shots is {shots} and there is nothing to show: give --exemplars, or leave it out"
        )
    flags.check_names()
    steering = steered.request()
    if exemplars is None:
        lm = flags.load()
    else:
        from polydec.request.exemplars import exemplar_prompt as behind
        from polydec.request.exemplars import read_exemplars

        pool = read_exemplars(exemplars)
        lm = flags.load()
        text = behind(
            lm,
            pool,
            text,
            SHOTS if shots is None else shots,
            max_tokens=flags.max_tokens,
            raw=flags.raw,
        )
    from polydec.request.company import (  # behind the checks: it loads torch
        pass_events,
        trace_header,
    )

    engine = api.Engine(lm)

    def on(
        event: TraceEvent,
    ) -> None:  # the request's method and guarantee stand beside its opening
        sink.write(
            json.dumps(to_json(event) | (opening if isinstance(event, OpenedEvent) else {})) + "\n"
        )

    ask = api.Ask(text, **flags.request(lm), **steering)
    if flags.trace is None:
        passes = None
    else:
        passes = list[RequestPass]()
    ticket = engine.submit(ask, on=ignore_event if flags.trace is None else on, passes=passes)
    opening = {"method": ticket.method, "trace": trace_header(lm, ticket)}
    print_unused_settings(lm, ticket.plan)
    if flags.logprobs is not None and not flags.json_:
        print(
            f"polydec: logprobs is {flags.logprobs}: they stand in the JSON object (--json)",
            file=sys.stderr,
        )
    with ExitStack() as files:  # opened now, so that a request that is refused empties no file
        if flags.trace is not None:
            sink = files.enter_context(open_trace_file(flags.trace))
        interrupted = stream_to_terminal(engine, ticket, quiet=flags.json_)
        for each in pass_events(lm, passes or ()):
            on(each)
    answer = ticket.completion()
    if flags.json_:
        print(json.dumps(answer.to_json()))
    else:
        print_completion_figures(answer)
    if interrupted:
        raise typer.Exit(130)


def read_prompt_text(prompt: str | None, file: Path | None) -> str:
    """The prompt: the argument, the file's text, or what is piped in. Raises RequestError where there is none, or two."""
    if prompt is not None and file is not None:
        raise RequestError("prompt and --prompt-file are both given: give one of them")
    if file is not None:
        return prompts.read_text(file)
    if prompt is not None and prompt != "-":
        return whole_text(prompt, "prompt")
    if prompt is None and (sys.stdin is None or sys.stdin.isatty()):
        raise RequestError(
            "prompt is missing: give it as an argument, with --prompt-file or on standard input"
        )
    text = prompts.standard_input()
    if not text:
        raise RequestError("prompt is missing: nothing came on standard input")
    if text.endswith("\r\n"):
        line_end = "\r\n"
    else:
        line_end = "\n"
    return text.removesuffix(line_end) or text  # what ends the line of a shell is no part of it


def open_trace_file(path: Path) -> NamedText:
    """The file to write events to. Raises PolydecError where it cannot be written."""
    what = f"trace {str(path)!r}"
    try:
        return NamedText(path, what)
    except UnwritableError:
        raise
    except ValueError as error:  # a name with a zero in it
        raise RequestError(error_sentence(f"{what} cannot be written: {error}")) from None


def stream_to_terminal(engine: api.Engine, ticket: api.Ticket, *, quiet: bool) -> bool:
    """Stream a ticket to the terminal; whether Ctrl-C ended it. Several choices are printed when they are done."""
    console = Console(highlight=False, soft_wrap=True)
    stream = not quiet and ticket.plan.request.n == 1
    interrupted = False
    thinking = ticket.plan.thinking
    if thinking is None:
        reader = None
    else:
        reader = thinking.writes_marks
    if reader is None:
        apart = None
    else:
        apart = ThinkingPrinter(reader, console)
    try:
        for piece in api.stream_ticket(engine, ticket):
            if stream and apart is None:
                print_piece(console, piece)
            elif stream and apart is not None:
                apart.take(piece)
    except KeyboardInterrupt as stop:
        interrupted = True
        engine.cancel(ticket)
        if isinstance(stop, SigtermInterrupt):  # a chat would ask for the next line
            raise
    if stream:
        if apart is not None:
            apart.end(ticket.completion().finish_reason)
        print(flush=True)
    elif not quiet:
        for i, choice in enumerate(ticket.completion().choices):
            console.print(f"[{i}]", style="bold")
            if choice.reasoning:
                Console(stderr=True).print(
                    Styled(escape_control_characters(choice.reasoning), style="dim")
                )
            console.print(Styled(terminal_text(choice.text)))
    return interrupted


def print_piece(console: Console, piece: api.Piece) -> None:
    """One piece: accepted drafts in colour on a terminal, plain text elsewhere."""
    if console.is_terminal:
        console.print(
            Styled(escape_control_characters(piece.text), style="green" if piece.drafted else ""),
            end="",
        )
    else:
        sys.stdout.write(piece.text)
    sys.stdout.flush()


class ThinkingPrinter:
    """Shows an answer piece by piece, and what was thought before it in grey on standard error."""

    def __init__(self, reader: ThinkingReader, console: Console) -> None:
        self._reader = reader
        self._state = reader.start()
        self._console = console
        self._aside = Console(stderr=True, highlight=False, soft_wrap=True)
        self._thinks = False

    def take(self, piece: api.Piece) -> None:
        self._state, segments = self._reader.step(self._state, piece.text)
        self._show(segments, piece)

    def end(self, finish_reason: str) -> None:
        """What was held back."""
        rest = self._reader.end(self._state, cut=finish_reason != "stop")
        self._show(rest, api.Piece("", 0, False))

    def _show(self, segments: Sequence[Segment], piece: api.Piece) -> None:
        for kind, text in segments:
            if kind is ThinkingSegmentKind.THINKING:
                self._aside.print(Styled(escape_control_characters(text), style="dim"), end="")
            elif kind is ThinkingSegmentKind.ANSWER:
                if self._thinks:
                    self._aside.print()
                print_piece(self._console, replace(piece, text=text))
            if kind is not ThinkingSegmentKind.MARK:
                self._thinks = kind is ThinkingSegmentKind.THINKING


def print_unused_settings(lm: api.LoadedModel, made: RequestPlan) -> None:
    """Say what was given and does nothing, on standard error."""
    from polydec.request.explain import describe_unused_settings

    for line in describe_unused_settings(lm, made):
        print(f"polydec: {line}", file=sys.stderr)


def print_completion_figures(answer: api.Completion) -> None:
    """One line of figures on standard error."""
    m: dict[str, Any] = answer.metrics
    unit = f"{answer.unit}s"
    if m["tokens_per_second"]:
        speed = f"{m['tokens_per_second']:.1f} {unit}/s"
    else:
        speed = "too short to time"
    if m.get("steered_tokens"):
        ended = f" ({m['steered_tokens']} tokens to end in time)"
    else:
        ended = ""
    each = (
        f"{m['tokens_per_pass']:.2f} {unit} a pass, " if m["tokens_per_pass"] else ""
    )  # of some passes
    cache = answer.method.get("cache")
    if cache is None:
        towards = ""
    else:
        towards = f", over cache {cache['name']}"
    reuse = answer.method.get("reuse")
    if reuse is not None and reuse["positions"]:
        if reuse["approximate"]:
            nearly = ", so its law is approximate"
        else:
            nearly = ""
        towards += f", {reuse['positions']} positions of an earlier text taken{nearly}"
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(
        f"{answer.method['name']} ({answer.method['guarantee']}{towards}): "
        f"{answer.usage['completion_tokens']} {unit}, {speed}, "
        f"{each}first token after {m['time_to_first_token']:.2f} s, "
        f"{answer.finish_reason}{ended}, {m['kernel']}",
        style="dim",
    )
