"""polydec chat: turn by turn; the cached prefix of earlier turns is reused."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from polydec import api
from polydec.base.edge import error_sentence, escape_control_characters, whole_text
from polydec.base.errors import PolydecError, RequestError
from polydec.cli import history, orders
from polydec.cli.declared_flags import expand_flag_parameters
from polydec.cli.flags import RequestFlags
from polydec.cli.generate import print_completion_figures, print_unused_settings, stream_to_terminal
from polydec.methods.registry.family import AUTOREGRESSIVE

PROMPT = "> "

ANSWER_LENGTH = 512
"""Tokens of an answer where nobody says how many: as on the server's page."""


@expand_flag_parameters
def chat(
    flags: RequestFlags, system: Annotated[str | None, typer.Option(help="system message")] = None
) -> None:
    """Talk to a model; /help lists what can be typed. Ctrl-D or /quit ends the chat; Ctrl-C ends an answer, or a line.\f

    Args:
        flags: Model, method and sampling of all answers.
        system: Message of the system before the first question. Default None: there is none.
    """
    if (
        flags.json_
        or flags.n != 1
        or flags.raw
        or flags.trace is not None
        or flags.logprobs is not None
        or flags.prompt_logprobs is not None
    ):
        raise RequestError(
            "chat does not take --json, --n, --raw, --trace, --logprobs or --prompt-logprobs: use `polydec generate` for these"
        )
    flags.check_names()
    # After the check, as it takes seconds to import.
    from polydec.cli import asking, chat_settings

    lm = flags.load()
    # One text stays cached: the next turn begins with it.
    lm.keep_texts(1)
    lm.check_method(flags.method, flags.option_values())
    own = {"method", "options", "raw"}
    request = {name: value for name, value in flags.request_fields(lm).items() if name not in own}
    talk = orders.ChatConversation(
        flags.method,
        flags.option_values(),
        system=whole_text(system, "system") if system else None,
        begun=chat_settings.starting_values(request | {"max_tokens": usual_length(lm, request)}),
    )
    terminal = sys.stdin is not None and sys.stdin.isatty()
    engine = api.Engine(lm)
    ask_line = chat_line_reader(terminal and sys.stdout.isatty())
    noted: object = None

    def request_of(changed: orders.ChatConversation) -> dict[str, Any]:
        own, rules = chat_settings.changed_values(changed.settings)
        # Only where /set changed a rule: else the sampling of the flags holds.
        if rules:
            sampling = lm.in_units(flags.units, flags.covers).sampling_with(**flags.bent | rules)
            own["sampling"] = sampling
        return request | own

    def check_settings(changed: orders.ChatConversation) -> None:
        # A first message stands for the turns to come: only method, options and system message are
        # checked.
        first = replace(changed, turns=()).with_turn("user", "x").messages
        asked = request_of(changed)
        asking.check_requests(lm, [(first, False)], [(changed.method, changed.options)], **asked)

    # Nobody reads this where the lines come from a file.
    if terminal:
        print_chat_notice("/help lists what can be typed; Ctrl-D ends the chat")
    while not talk.over:
        try:
            # A file that is piped in may begin with a byte order mark.
            line = ask_line().removeprefix("\ufeff")
        except EOFError:
            break
        except KeyboardInterrupt:
            if not terminal:
                break
            # A habit of shells: what was typed goes, and the conversation stays.
            print()
            print_chat_notice("Ctrl-D ends the chat")
            continue
        except ValueError as error:
            # Bytes that are no UTF-8.
            print_chat_notice(error_sentence(error))
            continue
        # Enter is easily hit twice: that ends nothing.
        if not line.strip():
            continue
        after, told = orders.run_chat_line(line, talk, check_settings)
        if told:
            print_chat_notice(told)
        # An order, not a message: nothing is to be answered.
        if len(after.turns) <= len(talk.turns):
            talk = after
            continue
        try:
            whole_text(line, "message")
            ask = api.Ask(
                after.messages, method=after.method, options=after.options, **request_of(after)
            )
            # Submitting plans the request: whatever is wrong with it shows here.
            ticket = submit_turn(engine, ask, usual_length(lm, request))
        except PolydecError as error:
            if not talk.turns and not terminal:
                raise
            print_chat_notice(error_sentence(error))
            # Such as a full context: the chat goes on without this turn.
            continue
        # Said once for each method and settings, not at every turn.
        if (after.decoded_by, after.settings) != noted:
            print_unused_settings(lm, ticket.plan)
            noted = after.decoded_by, after.settings
        stream_to_terminal(engine, ticket, quiet=False)
        answer = ticket.completion()
        print_completion_figures(answer)
        # Nobody who has not asked for a length knows that there is one.
        if answer.finish_reason == "length" and ask.max_tokens is None:
            print_chat_notice(
                f"cut after {answer.usage['completion_tokens']} {answer.unit}s: "
                "/set max_tokens N allows more"
            )
        talk = after.with_turn("assistant", answer.text)


def usual_length(lm: api.LoadedModel, request: Mapping[str, Any]) -> int | None:
    """How long an answer may be where no line of the chat says it.

    Args:
        lm: The model.
        request: The fields of a request, by the flags.

    Returns:
        Tokens; None: as many as the model's canvas has by itself, or all that there is room for.
    """
    if request["max_tokens"] is None and lm.family is AUTOREGRESSIVE:
        return ANSWER_LENGTH
    return request["max_tokens"]


def submit_turn(engine: api.Engine, ask: api.Ask, usual: int | None) -> api.Ticket:
    """Submit a request, with an answer of the usual length where it says none.

    Args:
        engine: The engine.
        ask: The request.
        usual: Tokens of an answer of the usual length; None: the engine's own.

    Returns:
        The ticket.

    Raises:
        RequestError: The request cannot be answered.
    """
    if ask.max_tokens is None and usual is not None:
        # There may be less room behind a long conversation: then a shorter answer will do.
        for length in (usual, usual // 2):
            with suppress(RequestError):
                return engine.submit(replace(ask, max_tokens=length))
    # Whatever else is wrong is said now.
    return engine.submit(ask)


def chat_line_reader(editing: bool) -> Callable[[], str]:
    """Make the function that asks for the next line.

    With `editing` it has the arrow keys and the lines of earlier chats, where Python has readline.
    """
    if editing:
        try:
            import readline
        except ImportError:
            # A system whose terminal edits lines by itself.
            pass
        else:
            return history.readline_line_reader(readline, PROMPT, print_chat_notice)
    console = Console(highlight=False)
    return lambda: console.input(f"[bold]{PROMPT}[/bold]")


def print_chat_notice(text: str) -> None:
    """Say something that is no answer of the model: on standard error, with our name where it is
    one line. On a terminal lines break between words, and a list keeps its second column.

    Args:
        text: What is said.
    """
    said = escape_control_characters(text if "\n" in text else f"polydec: {text}")
    if sys.stderr.isatty():
        said = wrap_list(said, shutil.get_terminal_size().columns)
    print(said, file=sys.stderr, flush=True)


BELOW = "    "
"""What stands before an explanation that has no room beside its name."""


def wrap_list(text: str, width: int) -> str:
    """Break lines between words.

    Args:
        text: Lines; in a list two spaces or more stand before what an entry is.
        width: Columns.

    Returns:
        The lines, each no wider where its words allow that. What goes on stands in the column where
        the second part of its entry begins; where the first part takes more than half of the
        width, all of the second stands below it.
    """
    out = list[str]()
    for line in text.split("\n"):
        entry = re.match(r"(\S.*?)\s{2,}", line)
        # An entry that takes most of the line leaves no column. A sentence is no list.
        narrow = entry is not None and entry.end() > width // 2
        indent = entry.end() if entry is not None and not narrow else 0
        if entry is not None and narrow and len(line) > width and "\n" in text:
            out.append(entry[1])
            indent = len(BELOW)
            line = BELOW + line[entry.end() :]
        out += textwrap.wrap(
            line, width, subsequent_indent=" " * indent, break_on_hyphens=False
        ) or [""]
    return "\n".join(out)
