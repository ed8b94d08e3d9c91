"""polydec generate: decode one prompt and stream the text."""
from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.text import Text as Styled

from polydec import api
from polydec.cli import prompts
from polydec.cli.flags import Flags, shared
from polydec.core.trace import Event, Opened, ignore, to_json


@shared
def generate(flags: Flags,
             prompt: Annotated[str | None, typer.Argument(help="the prompt (or --prompt-file)")] = None,
             prompt_file: Annotated[Path | None, typer.Option(help="read the prompt from this file")] = None) -> None:
    """Decode one prompt. Text streams to standard output; accepted drafts are green on a terminal."""
    if (prompt is None) == (prompt_file is None):
        raise ValueError("prompt is missing: give it as an argument or with --prompt-file" if prompt is None else
                         "prompt and --prompt-file are both given: give one of them")
    text = prompts.read_text(prompt_file) if prompt_file else prompt or ""
    if not text.strip():
        raise ValueError("prompt is empty: give a text of at least one character")
    lm = flags.load()
    engine = api.Engine(lm)

    def on(event: Event) -> None:                 # the request's method and guarantee stand beside its opening
        sink.write(json.dumps(to_json(event) | ({"method": ticket.method} if isinstance(event, Opened) else {})) + "\n")

    ticket = engine.submit(text, **flags.request(lm), on=ignore if flags.trace is None else on)
    with ExitStack() as files:                    # opened now, so that a request that is refused empties no file
        if flags.trace is not None:
            sink = files.enter_context(trace(flags.trace))
        interrupted = run(engine, ticket, quiet=flags.json_)
    answer = ticket.completion()
    if flags.json_:
        print(json.dumps(answer.to_json()))
    else:
        report(answer)
    if interrupted:
        raise typer.Exit(130)


def trace(path: Path) -> TextIO:
    """The file to write events to. Raises ValueError where it cannot be written."""
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"trace {str(path)!r} cannot be written: {error.strerror}") from None


def run(engine: api.Engine, ticket: api.Ticket, *, quiet: bool) -> bool:
    """Stream a ticket to the terminal; whether Ctrl-C ended it. Several choices are printed when they are done."""
    console, stream = Console(highlight=False, soft_wrap=True), not quiet and ticket.plan.request.n == 1
    interrupted = False
    try:
        for piece in api.follow(engine, ticket):
            if stream:
                show(console, piece)
    except KeyboardInterrupt:
        interrupted = True
        engine.cancel(ticket)
    if stream:
        print(flush=True)
    elif not quiet:
        for i, choice in enumerate(ticket.completion().choices):
            console.print(f"[{i}]", style="bold")
            console.print(Styled(choice.text))
    return interrupted


def show(console: Console, piece: api.Piece) -> None:
    """One piece: accepted drafts in colour on a terminal, plain text elsewhere."""
    if console.is_terminal:
        console.print(Styled(piece.text, style="green" if piece.drafted else ""), end="")
    else:
        sys.stdout.write(piece.text)
    sys.stdout.flush()


def report(answer: api.Completion) -> None:
    """One line of figures on standard error."""
    m: dict[str, Any] = answer.metrics
    speed = f"{m['tokens_per_second']:.1f} tokens/s" if m["tokens_per_second"] else "too short to time"
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"{answer.method['name']} ({answer.method['guarantee']}): {answer.usage['completion_tokens']} tokens, {speed}, "
        f"{m['tokens_per_pass'] or 0:.2f} tokens a pass, first token after {m['time_to_first_token']:.2f} s, "
        f"{answer.finish_reason}, {m['kernel']}", style="dim")
