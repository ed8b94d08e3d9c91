"""polydec chat: turn by turn; the cached prefix of earlier turns is reused."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from polydec import api
from polydec.cli.flags import Flags, shared
from polydec.cli.generate import note, report, run
from polydec.edge import sentence, whole_text


@shared
def chat(
    flags: Flags, system: Annotated[str | None, typer.Option(help="system message")] = None
) -> None:
    """Talk to a model. An empty line or Ctrl-D ends the chat; Ctrl-C ends an answer."""
    if (
        flags.json_
        or flags.n != 1
        or flags.raw
        or flags.trace is not None
        or flags.logprobs is not None
    ):
        raise ValueError(
            "chat does not take --json, --n, --raw, --trace or --logprobs: use `polydec generate` for these"
        )
    flags.check_names()
    lm = flags.load()
    lm.checkpoint.lm.keep = 1
    if lm.draft is not None:
        lm.draft.lm.keep = 1
    lm.check(flags.method, flags.options())
    request = flags.request(lm)
    messages = [{"role": "system", "content": whole_text(system, "system")}] if system else []
    console, engine = Console(highlight=False), api.Engine(lm)
    while True:
        try:
            said = console.input("[bold]> [/bold]")
        except (EOFError, KeyboardInterrupt):
            break
        except ValueError as error:  # bytes that are no UTF-8
            print(f"polydec: {sentence(error)}", file=sys.stderr)
            continue
        if not said.strip():
            break
        messages.append({"role": "user", "content": said})
        try:
            whole_text(said, "message")
            ask = api.Ask(messages, **request)
            ticket = engine.submit(ask)
        except ValueError as error:
            if all(m["role"] != "assistant" for m in messages):
                raise
            print(f"polydec: {sentence(error)}", file=sys.stderr)
            # such as a full context: the chat goes on without this turn
            messages.pop()
            continue
        if len(messages) == 1 + bool(system):
            note(lm, ask, ticket.plan)
        run(engine, ticket, quiet=False)
        answer = ticket.completion()
        report(answer)
        messages.append({"role": "assistant", "content": answer.text})
