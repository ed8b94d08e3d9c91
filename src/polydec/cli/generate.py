"""polydec generate: decode one prompt and stream the text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.text import Text as Styled

from polydec import api
from polydec.base.edge import error_sentence, escape_control_characters, whole_text
from polydec.base.errors import RequestError, UnwritableError
from polydec.base.files import NamedText, require_writable_file
from polydec.base.interrupts import SigtermInterrupt
from polydec.cli import prompts
from polydec.cli.declared_flags import expand_flag_parameters
from polydec.cli.flags import RequestFlags, SteeringFlags
from polydec.cli.terminal_output import terminal_text
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
    system: Annotated[
        str | None, typer.Option(help="system message, for a model with a chat template")
    ] = None,
    exemplars: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines of solved problems; those of the most steps "
            "are shown before the prompt"
        ),
    ] = None,
    shots: Annotated[int | None, typer.Option(help=f"how many of them (default: {SHOTS})")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="write the picture to this file (.png), of a model of pictures, or the masks of "
            "a method such as stamp; several answers are numbered, NAME-1.png and so on"
        ),
    ] = None,
    steered: SteeringFlags = SteeringFlags(),  # noqa: B008
) -> None:
    """Decode one prompt. Text streams to standard output; accepted drafts are green on a terminal.\f

    Args:
        flags: Model, method and sampling of the request.
        prompt: The prompt; "-" or None: standard input.
        prompt_file: File with the prompt. Default None.
        system: Message of the system before the prompt. Default None: there is none.
        exemplars: JSON lines of solved problems to show before the prompt. Default None.
        shots: How many of them are shown. Default None: `SHOTS`.
        out: File of the picture. Default None: it is shown in characters.
        steered: How the model's law is bent. Default: not at all.
    """
    sourced = flags.written_from is not None
    # An encoder-decoder model may write from the source alone, and an image may ask by itself.
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
    if system is not None:
        # An image stands before what the user says, and leaves a place for the system.
        beside = sourced and not flags.image
        check_system_message(system, raw=flags.raw, sourced=beside)
    if out is not None:
        check_picture_file(out)
    flags.check_names()
    # Names are checked before the model is loaded, which may take long.
    steering = steered.steering_fields()
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
    view = lm.checkpoint.view
    # After the checks, as they import torch.
    from polydec.request.gap_marks import find_gap_marks
    from polydec.request.request_records import pass_events, trace_header

    fields = {**flags.request_fields(lm), **steering}
    # A model of gaps was trained on texts that run on: what stands before the answer is one.
    if flags.infill is not None and system is None:
        fields["raw"] = flags.raw or find_gap_marks(lm.checkpoint.text) is not None
    engine = api.Engine(lm)

    def on_event(event: TraceEvent) -> None:
        # The opening carries the request's method and guarantee as well.
        sink.write_text(
            json.dumps(to_json(event) | (opening if isinstance(event, OpenedEvent) else {})) + "\n"
        )

    ask = api.Ask(prompt_behind_system(text, system), **fields)
    if flags.trace is None:
        passes = None
    else:
        passes = list[RequestPass]()
    ticket = engine.submit(ask, on=ignore_event if flags.trace is None else on_event, passes=passes)
    if out is not None and view is None and not ticket.plan.card.shows_masks:
        raise RequestError(
            f"out is {str(out)!r}: {lm.name} writes text, and only a model of pictures or a method of masks (stamp, x-decoder) "
            "has something to draw"
        )
    opening = {"method": ticket.method, "trace": trace_header(lm, ticket)}
    print_unused_settings(lm, ticket.plan)
    if flags.logprobs is not None and not flags.json_:
        print(
            f"polydec: logprobs is {flags.logprobs}: they stand in the JSON object (--json)",
            file=sys.stderr,
        )
    with ExitStack() as files:
        # Opened only now, so that a request that is refused empties no file.
        if flags.trace is not None:
            sink = files.enter_context(open_trace_file(flags.trace))
        # Passes are known only when the answer has ended: their events come last.
        # A picture is shown when it is complete.
        interrupted = stream_to_terminal(engine, ticket, quiet=flags.json_ or view is not None)
        for each in pass_events(lm, passes or ()):
            on_event(each)
    answer = ticket.completion()
    if out is not None:
        write_pictures(answer, out, sys.stderr if flags.json_ else sys.stdout)
    if out is not None and not any(choice.picture for choice in answer.choices):
        print(
            f"polydec: out is {str(out)!r}: the answer asks for no mask of an image, so nothing was written",
            file=sys.stderr,
        )
    if flags.json_:
        print(json.dumps(answer.to_json()))
    else:
        if out is None:
            print_pictures(answer)
        print_completion_figures(answer)
    if interrupted:
        raise typer.Exit(130)


def check_picture_file(out: Path) -> None:
    """Raise RequestError for a file that no picture can be written to."""
    if out.suffix.lower() != ".png":
        raise RequestError(
            f"out is {str(out)!r}: pictures are written as PNG, so let it end in .png"
        )
    require_writable_file("out", out)


def write_pictures(answer: api.Completion, out: Path, told: TextIO) -> None:
    """Write the pictures of an answer, and say where they are.

    Args:
        answer: The answer.
        out: The file; of several pictures each gets a number behind its name.
        told: Where the names of the files are written.

    Raises:
        UnwritableError: A file cannot be written.
    """
    pictures = [choice.picture for choice in answer.choices if choice.picture is not None]
    for at, picture in enumerate(pictures, 1):
        path = out if len(pictures) == 1 else out.with_name(f"{out.stem}-{at}{out.suffix}")
        picture.save_png(path)
        print(path, file=told, flush=True)


def print_pictures(answer: api.Completion) -> None:
    """Show the pictures of an answer in characters, one below the other."""
    for choice in answer.choices:
        if choice.picture is not None:
            print(f"{choice.picture.terminal_text}\n", flush=True)


def read_prompt_text(prompt: str | None, file: Path | None) -> str:
    """The prompt: the argument, the file's text, or what is piped in.

    Args:
        prompt: The argument; "-" or None: standard input.
        file: The file; None: none.

    Returns:
        The text, without the line break that a shell adds.

    Raises:
        RequestError: There is no prompt, or two.
    """
    if prompt is not None and file is not None:
        raise RequestError("prompt and --prompt-file are both given: give one of them")
    if file is not None:
        return prompts.read_text(file)
    if prompt is not None and prompt != "-":
        return whole_text(prompt, "prompt")
    # A terminal would wait for input without a word.
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
    # The line break that `echo` adds is no part of the prompt, unless it is all there is.
    return text.removesuffix(line_end) or text


def prompt_behind_system(text: str, system: str | None) -> api.Prompt:
    """The prompt as a request takes it.

    Args:
        text: What the user says.
        system: Message of the system before it; None: there is none.

    Returns:
        The text, or the messages.
    """
    if system is None:
        return text
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def check_system_message(system: str, *, raw: bool, sourced: bool) -> None:
    """Check that there is a conversation for a system message to begin.

    Args:
        system: The message.
        raw: Whether the prompt goes in without the chat template.
        sourced: Whether there is a source beside the prompt.

    Raises:
        RequestError: There is none, or the message is empty or no whole text.
    """
    if not whole_text(system, "system"):
        raise RequestError(
            "system is empty: give a text of at least one character, or leave it out"
        )
    if raw:
        raise RequestError("system is given and raw is true: a system message needs the template")
    if sourced:
        raise RequestError("system is given beside a source: put it into the source")


def open_trace_file(path: Path) -> NamedText:
    """Open the file that events are written to.

    Raises:
        PolydecError: It cannot be written.
    """
    what = f"trace {str(path)!r}"
    try:
        return NamedText(path, what)
    except UnwritableError:
        raise
    except ValueError as error:
        # A name with a zero byte in it.
        raise RequestError(error_sentence(f"{what} cannot be written: {error}")) from None


def stream_to_terminal(engine: api.Engine, ticket: api.Ticket, *, quiet: bool) -> bool:
    """Decode a request and stream its text to the terminal. Several choices are printed when they
    are done.

    Args:
        engine: The engine that runs it.
        ticket: The request's ticket.
        quiet: Whether nothing is printed.

    Returns:
        Whether Ctrl-C ended it.

    Raises:
        SigtermInterrupt: SIGTERM ended it.
    """
    console = Console(highlight=False, soft_wrap=True)
    # Pieces of several choices would be mixed up on the terminal.
    stream = not quiet and ticket.plan.request.n == 1
    interrupted = False
    # A model that thinks aloud writes marks around it: only then must pieces be read before they
    # are shown.
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
            # Without thinking each piece is shown as it comes.
            if stream and apart is None:
                print_piece(console, piece)
            elif stream and apart is not None:
                apart.print_piece(piece)
    except KeyboardInterrupt as stop:
        interrupted = True
        engine.cancel(ticket)
        # SIGTERM must end the command; after Ctrl-C a chat asks for the next line.
        if isinstance(stop, SigtermInterrupt):
            raise
    if stream:
        if apart is not None:
            apart.end_text(ticket.completion().finish_reason)
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
    """Print one piece: in green on a terminal where it is an accepted draft, as plain text
    elsewhere.

    Args:
        console: Standard output.
        piece: The piece of text.
    """
    if console.is_terminal:
        console.print(
            Styled(escape_control_characters(piece.text), style="green" if piece.drafted else ""),
            end="",
        )
    else:
        sys.stdout.write(piece.text)
    sys.stdout.flush()


class ThinkingPrinter:
    """Print an answer piece by piece, and the thinking before it in grey on standard error."""

    def __init__(self, reader: ThinkingReader, console: Console) -> None:
        self._reader = reader
        self._state = reader.start_state()
        self._console = console
        self._aside = Console(stderr=True, highlight=False, soft_wrap=True)
        self._thinks = False

    def print_piece(self, piece: api.Piece) -> None:
        """Print what a piece completes."""
        self._state, segments = self._reader.read_piece(self._state, piece.text)
        self._show(segments, piece)

    def end_text(self, finish_reason: str) -> None:
        """Print what was held back, as it might have been the beginning of a mark."""
        rest = self._reader.end_text(self._state, cut=finish_reason != "stop")
        self._show(rest, api.Piece("", 0, False))

    def _show(self, segments: Sequence[Segment], piece: api.Piece) -> None:
        for kind, text in segments:
            if kind is ThinkingSegmentKind.THINKING:
                self._aside.print(Styled(escape_control_characters(text), style="dim"), end="")
            elif kind is ThinkingSegmentKind.ANSWER:
                # A line break between the thinking and the answer, on the stream of the thinking.
                if self._thinks:
                    self._aside.print()
                print_piece(self._console, replace(piece, text=text))
            if kind is not ThinkingSegmentKind.MARK:
                self._thinks = kind is ThinkingSegmentKind.THINKING


def print_unused_settings(lm: api.LoadedModel, made: RequestPlan) -> None:
    """Print on standard error what was given and does nothing, a line for each.

    Args:
        lm: The loaded model.
        made: The plan of the request.
    """
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
    # Some requests take no pass at all.
    each = f"{m['tokens_per_pass']:.2f} {unit} a pass, " if m["tokens_per_pass"] else ""
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
    aside = Console(stderr=True, highlight=False, markup=False)
    aside.print(
        f"{answer.method['name']} ({answer.method['guarantee']}{towards}): "
        f"{answer.usage['completion_tokens']} {unit}, {speed}, "
        f"{each}first token after {m['time_to_first_token']:.2f} s, "
        f"{answer.finish_reason}{ended}, {m['kernel']}",
        style="dim",
        # Lines break between words on a terminal; a file gets one line, whatever its length.
        soft_wrap=not aside.is_terminal,
    )
